// Sizes of everything a rank reserves, derived once from the options and the loaded model.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/api/engine_options.h"
#include "engine/drafters/drafter.h"
#include "engine/models/target_model.h"
#include "engine/plan/cache_spec.h"
#include "engine/plan/step_plan.h"

namespace firesteel {

inline constexpr int32_t kContextGroup = 0;
inline constexpr int32_t kWindowGroup = 1;
// The prefix cache shares whole context blocks and the window blocks before their end.
// A context block is a multiple of every compression ratio, so that no group of tokens straddles two blocks.
inline constexpr int32_t kContextBlockTokens = 128;
inline constexpr int32_t kWindowBlockTokens = 64;

struct MemoryPlan {
  int32_t max_model_len = 0;
  int32_t positions =
      0;  // max_model_len + look-ahead: rows of the rope tables, reach of the block tables
  PlanLimits plan;
  StepLimits step;
  CacheSpec cache;
  std::vector<int32_t> num_blocks;  // per cache group
  // With the window blocks that the prefix cache adds for each.
  int64_t bytes_per_context_block = 0;
  TargetModel::Caches caches;
};

// What the caches may take when the options give no capacity.
struct CacheRoom {
  int64_t bytes = int64_t{1} << 30;
  // True: never more than `bytes`, as on a GPU, and as much again as all slots at full length need, for cached prefixes.
  // False: at least one sequence of full length, at most all slots.
  bool device = false;
};

// Errors name the option that does not fit.
Result<MemoryPlan> PlanMemory(const EngineOptions& options, const TargetModel& target,
                              const Drafter& drafter, const CacheRoom& room = {});

}  // namespace firesteel
