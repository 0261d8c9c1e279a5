// WakeSignal: how an idle thread sleeps until another one has something for it. No spinning, no lock.
//
// The sleeper reads Epoch() first, then looks at its queues, then calls Wait with that epoch: whatever was published
// after the look changed the epoch, so no wake-up is lost. Any number of notifiers, one sleeper.
#pragma once

#include <atomic>
#include <cstdint>

namespace firesteel {

class WakeSignal {
 public:
  void Notify() {
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_one();
  }
  uint32_t Epoch() const { return epoch_.load(std::memory_order_acquire); }
  void Wait(uint32_t seen) const { epoch_.wait(seen, std::memory_order_acquire); }

 private:
  std::atomic<uint32_t> epoch_{0};
};

}  // namespace firesteel
