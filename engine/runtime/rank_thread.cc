#include "engine/runtime/rank_thread.h"

#include <utility>

namespace firesteel {
namespace {

// Steps that may be in flight. The scheduler plans on results it has seen, so one.
constexpr int32_t kPipelineDepth = 1;

}  // namespace

Result<std::unique_ptr<RankThread>> RankThread::Start(RankFactory make_rank,
                                                      WakeSignal* scheduler) {
  std::unique_ptr<RankThread> rank(new RankThread(scheduler));
  std::promise<Status> started;
  std::future<Status> start_status = started.get_future();
  rank->thread_ = std::thread(
      [&rank = *rank, make_rank = std::move(make_rank), started = std::move(started)]() mutable {
        rank.Run(std::move(make_rank), std::move(started));
      });
  FIRESTEEL_RETURN_IF_ERROR(start_status.get());
  return rank;
}

RankThread::~RankThread() {
  stop_.store(true, std::memory_order_release);
  plan_ready_.Notify();
  thread_.join();
}

void RankThread::Run(RankFactory make_rank, std::promise<Status> started) {
  Result<std::unique_ptr<RankExecutor>> made = make_rank();
  make_rank = nullptr;
  if (!made.ok()) {
    started.set_value(made.status());
    return;
  }
  const std::unique_ptr<RankExecutor> executor = std::move(made).value();
  info_ = executor->info();
  const auto max_sequences = static_cast<size_t>(info_.limits.max_sequences);
  const auto max_logit_rows = static_cast<size_t>(info_.limits.max_logit_rows);
  std::vector<StepPlan> plans;
  std::vector<StepOutcome> outcomes;
  for (int32_t i = 0; i < kPipelineDepth; ++i) {
    plans.emplace_back(info_.limits);
    outcomes.push_back({.results = std::vector<SequenceResult>(max_sequences),
                        .logprobs = std::vector<LogprobRecord>(max_logit_rows)});
  }
  plans_.emplace(std::move(plans), &plan_ready_);
  outcomes_.emplace(std::move(outcomes), scheduler_);
  started.set_value(Status::Ok());
  ServePlans(executor.get());
}

void RankThread::ServePlans(RankExecutor* executor) {
  while (true) {
    const uint32_t seen = plan_ready_.Epoch();
    if (stop_.load(std::memory_order_acquire)) return;
    const StepPlan* plan = plans_->Front();
    if (plan == nullptr) {
      plan_ready_.Wait(seen);
      continue;
    }
    StepOutcome* outcome = outcomes_->BeginPush();
    FIRESTEEL_CHECK(outcome != nullptr, "more steps in flight than outcome slots");
    outcome->num_sequences = plan->header().num_sequences;
    outcome->status = executor->RunStep(*plan, outcome->results, outcome->logprobs);
    // The plan's slot is free before its outcome is seen, so the scheduler can fill it at once.
    plans_->Pop();
    outcomes_->EndPush();
  }
}

}  // namespace firesteel
