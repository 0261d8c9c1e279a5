// RankThread: the thread that owns one RankExecutor, and the two rings that connect it to the scheduler thread.
//
// The executor is created, used and destroyed on this thread and reachable from no other one.
#pragma once

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "engine/exec/rank.h"
#include "engine/plan/step_plan.h"
#include "engine/plan/step_result.h"
#include "engine/runtime/engine_factory.h"
#include "engine/runtime/spsc_ring.h"
#include "engine/runtime/wake_signal.h"
#include "kernels/core/status.h"

namespace firesteel {

// What became of one plan.
struct StepOutcome {
  Status status;
  std::vector<SequenceResult> results;  // [limits.max_sequences]; the first num_sequences are valid
  int32_t num_sequences = 0;
  std::vector<LogprobRecord> logprobs;  // [limits.max_logit_rows]; valid if the plan wanted them
};

class RankThread {
 public:
  // Starts the thread and waits until its executor is up; the executor's error otherwise. `scheduler` is notified when
  // an outcome is ready and outlives this object.
  static Result<std::unique_ptr<RankThread>> Start(RankFactory make_rank, WakeSignal* scheduler);
  ~RankThread();  // lets the step that runs finish, then joins

  const RankInfo& info() const { return info_; }

  // Scheduler thread only.
  StepPlan* BeginPlan() {
    return plans_->BeginPush();
  }  // null while kPipelineDepth steps are in flight
  void PublishPlan() { plans_->EndPush(); }
  StepOutcome* FrontOutcome() { return outcomes_->Front(); }
  void PopOutcome() { outcomes_->Pop(); }

 private:
  explicit RankThread(WakeSignal* scheduler) : scheduler_(scheduler) {}

  void Run(RankFactory make_rank, std::promise<Status> started);
  void ServePlans(RankExecutor* executor);

  // Constant once Start has returned.
  WakeSignal* scheduler_;
  RankInfo info_;
  std::optional<SpscRing<StepPlan>> plans_;
  std::optional<SpscRing<StepOutcome>> outcomes_;

  WakeSignal plan_ready_;  // a plan was published, or stop_ was set
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace firesteel
