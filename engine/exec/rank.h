// One rank: a device, its share of the weights, every device table, and the step program that runs a plan on them.
//
// Owned and called by exactly one thread (the rank thread). Start-up (Create) loads, reserves all memory and captures the
// decode graphs; afterwards RunStep allocates nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/api/engine.h"
#include "engine/api/engine_options.h"
#include "engine/plan/cache_spec.h"
#include "engine/plan/step_costs.h"
#include "engine/plan/step_plan.h"
#include "engine/plan/step_result.h"
#include "kernels/core/device.h"
#include "kernels/core/status.h"

namespace firesteel {

// What the scheduler needs to know of the ranks. Identical on every rank.
struct RankInfo {
  ModelInfo model;
  CacheSpec cache;
  std::vector<int32_t> num_blocks;  // capacity of each cache group's pool, in CacheSpec order
  PlanLimits limits;
  int32_t draft_length = 0;  // K: drafts per round at most
  StepCosts costs;           // measured for an automatic draft length; else empty
};

class RankExecutor {
 public:
  virtual ~RankExecutor() = default;
  virtual const RankInfo& info() const = 0;

  // Runs one validated plan and fills results[0 .. num_sequences) and, if the plan wants log-probabilities,
  // logprobs[0 .. num_logit_rows); the counts are those of plan.header(). Blocking.
  virtual Status RunStep(const StepPlan& plan, std::span<SequenceResult> results,
                         std::span<LogprobRecord> logprobs) = 0;
};

// Loads the checkpoint named by the options. Errors name the file, tensor or option at fault.
Result<std::unique_ptr<RankExecutor>> CreateRank(const EngineOptions& options);

// The same on a device that is open already.
Result<std::unique_ptr<RankExecutor>> CreateRankOn(std::unique_ptr<Device> device,
                                                   const EngineOptions& options);

}  // namespace firesteel
