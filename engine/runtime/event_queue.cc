#include "engine/runtime/event_queue.h"

#include <algorithm>
#include <chrono>
#include <iterator>

namespace firesteel {

void EventQueue::Push(std::vector<TokenEvent>* events) {
  if (events->empty()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::move(events->begin(), events->end(), std::back_inserter(events_));
  }
  events->clear();
  changed_.notify_one();
}

void EventQueue::Close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

bool EventQueue::Wait(int64_t timeout_us, std::vector<TokenEvent>* events) {
  // A year at most, so that "for ever" does not overflow the clock.
  constexpr int64_t kMaxWaitUs = int64_t{365} * 24 * 3600 * 1000 * 1000;
  const std::chrono::microseconds timeout(std::clamp<int64_t>(timeout_us, 0, kMaxWaitUs));
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return closed_ || !events_.empty(); });
  if (events_.empty()) return !closed_;
  std::move(events_.begin(), events_.end(), std::back_inserter(*events));
  events_.clear();
  return true;
}

}  // namespace firesteel
