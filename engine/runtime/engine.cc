// The Engine implementation: a scheduler thread that owns the Scheduler, and a rank thread that
// owns the device.
//
// A step's way: the scheduler thread fills the plan ring's slot, the rank thread runs it and fills
// the outcome ring's slot, the scheduler thread turns it into events. The scheduler thread sleeps
// on one signal that callers, the rank thread and the destructor notify. The event queue closes,
// and WaitEvents returns false, once nothing is live and nothing can become so: draining or failed
// with all requests ended, or the destructor.
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/api/engine.h"
#include "engine/runtime/command_queue.h"
#include "engine/runtime/engine_factory.h"
#include "engine/runtime/event_queue.h"
#include "engine/runtime/rank_thread.h"
#include "engine/runtime/wake_signal.h"
#include "engine/sched/invariants.h"
#include "engine/sched/scheduler.h"

namespace firesteel {
namespace {

class ThreadedEngine final : public Engine {
 public:
  // `wake` is the signal that `rank` was started with.
  ThreadedEngine(std::unique_ptr<WakeSignal> wake, std::unique_ptr<RankThread> rank,
                 const SchedulerConfig& config)
      : wake_(std::move(wake)),
        rank_(std::move(rank)),
        config_(config),
        commands_(config_, wake_.get()),
        scheduler_(config_) {
    PublishStats();
    thread_ = std::thread([this] { SchedulerLoop(); });
  }

  ~ThreadedEngine() override {
    stop_.store(true, std::memory_order_release);
    wake_->Notify();
    thread_.join();
  }

  const ModelInfo& info() const override { return rank_->info().model; }
  Status Submit(Request request) override { return commands_.Submit(std::move(request)); }
  void Abort(RequestId id) override { commands_.Abort(id); }
  void BeginDrain() override { commands_.BeginDrain(); }
  bool WaitEvents(int64_t timeout_us, std::vector<TokenEvent>* events) override {
    return events_.Wait(timeout_us, events);
  }
  EngineStats stats() const override;

 private:
  void SchedulerLoop();
  void TakeCommands();
  void TakeOutcome();
  void StartStep();
  void Fail(const Status& reason);
  void Deliver();
  void PublishStats();

  // Constant after construction. The rank thread notifies wake_, so wake_ is destroyed after it.
  std::unique_ptr<WakeSignal> wake_;
  std::unique_ptr<RankThread> rank_;
  SchedulerConfig config_;

  CommandQueue commands_;
  EventQueue events_;
  std::atomic<bool> stop_{false};

  // Scheduler thread only.
  Scheduler scheduler_;
  Status failure_;
  std::vector<EngineCommand> taken_commands_;
  std::vector<TokenEvent> new_events_;

  mutable std::mutex stats_mutex_;  // guards published_stats_
  EngineStats published_stats_;

  std::thread thread_;
};

EngineStats ThreadedEngine::stats() const {
  const int64_t pending = commands_.num_pending_submits();
  const std::lock_guard<std::mutex> lock(stats_mutex_);
  EngineStats stats = published_stats_;
  stats.requests_waiting += pending;
  return stats;
}

void ThreadedEngine::SchedulerLoop() {
  while (true) {
    const uint32_t seen = wake_->Epoch();
    const bool stop = stop_.load(std::memory_order_acquire);
    TakeCommands();
    TakeOutcome();
    if (stop) break;
    if (failure_.ok() && !scheduler_.step_in_flight()) StartStep();
    Deliver();
    wake_->Wait(seen);
  }
  commands_.Fail(Unavailable("the engine is shutting down"));
  TakeCommands();
  scheduler_.EndAll(FinishReason::kAborted, Status::Ok(), &new_events_);
  Deliver();
}

void ThreadedEngine::TakeCommands() {
  commands_.TakeAll(&taken_commands_);
  for (EngineCommand& command : taken_commands_) {
    if (command.kind == EngineCommand::Kind::kAbort) {
      scheduler_.Abort(command.id, &new_events_);
      continue;
    }
    Status status = failure_;
    if (status.ok()) status = scheduler_.Submit(std::move(command.request));
    if (!status.ok()) {
      new_events_.push_back({.id = command.id, .finish = FinishReason::kError, .error = status});
    }
  }
}

void ThreadedEngine::TakeOutcome() {
  StepOutcome* outcome = rank_->FrontOutcome();
  if (outcome == nullptr) return;
  Status status = outcome->status;
  if (status.ok()) {
    const std::span<const SequenceResult> results(outcome->results);
    status = scheduler_.OnResult(results.first(static_cast<size_t>(outcome->num_sequences)),
                                 outcome->logprobs, &new_events_);
  }
  rank_->PopOutcome();
  if (!status.ok()) Fail(status);
}

void ThreadedEngine::StartStep() {
  StepPlan* plan = rank_->BeginPlan();
  FIRESTEEL_CHECK(plan != nullptr, "the plan ring is full with no step in flight");
  if (scheduler_.Plan(plan)) {
    rank_->PublishPlan();
    return;
  }
  FIRESTEEL_DCHECK(CheckInvariants(scheduler_).ok(), CheckInvariants(scheduler_).message());
}

// The ranks are not asked again: their caches may hold anything now. The process is expected to be
// restarted.
void ThreadedEngine::Fail(const Status& reason) {
  failure_ = reason;
  commands_.Fail(reason);
  scheduler_.AbandonStep();
  TakeCommands();
  scheduler_.EndAll(FinishReason::kError, reason, &new_events_);
}

void ThreadedEngine::Deliver() {
  PublishStats();
  // An id is free again before its last event can be seen.
  commands_.Retire(new_events_);
  events_.Push(&new_events_);
  if (commands_.finished()) events_.Close();
}

void ThreadedEngine::PublishStats() {
  EngineStats stats = scheduler_.stats();
  stats.healthy = failure_.ok();
  const std::lock_guard<std::mutex> lock(stats_mutex_);
  published_stats_ = stats;
}

}  // namespace

Result<std::unique_ptr<Engine>> CreateEngineOn(RankFactory make_rank,
                                               const EngineOptions& options) {
  auto wake = std::make_unique<WakeSignal>();
  FIRESTEEL_ASSIGN_OR_RETURN(std::unique_ptr<RankThread> rank,
                             RankThread::Start(std::move(make_rank), wake.get()));
  const RankInfo& info = rank->info();
  SchedulerConfig config;
  config.cache = info.cache;
  config.num_blocks = info.num_blocks;
  config.limits = info.limits;
  config.draft_length = info.draft_length;
  config.costs = info.costs;
  config.vocab_size = info.model.vocab_size;
  config.max_model_len = info.model.max_model_len;
  config.max_batched_tokens = options.max_batched_tokens;
  config.prefill_chunk = options.prefill_chunk;
  config.max_queue = options.max_queue;
  config.graphs = options.graphs;
  config.prefix_cache = options.prefix_cache;
  FIRESTEEL_RETURN_IF_ERROR(config.Validate());
  return std::unique_ptr<Engine>(
      std::make_unique<ThreadedEngine>(std::move(wake), std::move(rank), config));
}

}  // namespace firesteel
