// Who may enter: the check of a request on its own, and the bounded FIFO queue of those that wait for a slot.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "engine/api/request.h"
#include "engine/sched/scheduler_config.h"
#include "engine/sched/sequence.h"
#include "kernels/core/status.h"

namespace firesteel {

// Output tokens that a valid request may have: max_tokens, clipped to the model's length.
int32_t MaxOutputTokens(const SchedulerConfig& config, const Request& request);

// InvalidArgument when the request could never run, whatever else is live. Pure; may be called from any thread.
Status CheckRequest(const SchedulerConfig& config, const Request& request);

// ResourceExhausted for a request that comes while `live_requests` are waiting or running. Pure; any thread.
Status CheckQueueRoom(const SchedulerConfig& config, int64_t live_requests);

// FIFO of waiting sequences, oldest in front. Owns them; scheduler thread only.
class AdmissionQueue {
 public:
  bool empty() const { return waiting_.empty(); }
  int32_t size() const { return static_cast<int32_t>(waiting_.size()); }
  const Sequence& front() const { return *waiting_.front(); }
  const std::deque<std::unique_ptr<Sequence>>& waiting() const { return waiting_; }

  void PushBack(std::unique_ptr<Sequence> sequence);  // a new one
  void PushFront(
      std::unique_ptr<Sequence> sequence);  // a preempted one: it is older than all that wait
  std::unique_ptr<Sequence> PopFront();     // REQUIRES: !empty()
  std::unique_ptr<Sequence> Remove(RequestId id);  // null when absent

 private:
  std::deque<std::unique_ptr<Sequence>> waiting_;
};

}  // namespace firesteel
