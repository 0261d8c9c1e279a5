#include "engine/runtime/command_queue.h"

#include <string>
#include <utility>

#include "engine/sched/admission.h"

namespace firesteel {

CommandQueue::CommandQueue(const SchedulerConfig& config, WakeSignal* scheduler)
    : config_(config), scheduler_(scheduler) {}

Status CommandQueue::Submit(Request request) {
  FIRESTEEL_RETURN_IF_ERROR(CheckRequest(config_, request));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) return Unavailable("the engine has failed: " + failure_.message());
    if (draining_) return Unavailable("the engine is draining and takes no new requests");
    FIRESTEEL_RETURN_IF_ERROR(CheckQueueRoom(config_, static_cast<int64_t>(live_.size())));
    const RequestId id = request.id;
    if (!live_.insert(id).second) {
      return InvalidArgument("request id " + std::to_string(id.value) +
                             " is in use, needs one that is unique among live requests");
    }
    commands_.push_back(
        {.kind = EngineCommand::Kind::kSubmit, .id = id, .request = std::move(request)});
    ++pending_submits_;
  }
  scheduler_->Notify();
  return Status::Ok();
}

void CommandQueue::Abort(RequestId id) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!live_.contains(id)) return;
    commands_.push_back({.kind = EngineCommand::Kind::kAbort, .id = id, .request = {}});
  }
  scheduler_->Notify();
}

void CommandQueue::BeginDrain() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    draining_ = true;
  }
  scheduler_->Notify();
}

int64_t CommandQueue::num_pending_submits() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return pending_submits_;
}

void CommandQueue::TakeAll(std::vector<EngineCommand>* commands) {
  commands->clear();
  const std::lock_guard<std::mutex> lock(mutex_);
  commands_.swap(*commands);
  pending_submits_ = 0;
}

void CommandQueue::Retire(const std::vector<TokenEvent>& events) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const TokenEvent& event : events) {
    if (event.finish != FinishReason::kNone) live_.erase(event.id);
  }
}

void CommandQueue::Fail(const Status& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failure_ = reason;
}

bool CommandQueue::finished() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return live_.empty() && (draining_ || !failure_.ok());
}

}  // namespace firesteel
