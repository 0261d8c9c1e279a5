// SpscRing: preallocated slots handed from exactly one producer thread to exactly one consumer thread.
//
// A slot is filled in place, so publishing allocates and copies nothing. The producer owns the slot of BeginPush
// until EndPush, the consumer owns that of Front until Pop. The consumer sleeps on its own WakeSignal, which may
// cover several queues. Capacity and slot addresses are constant after construction.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "engine/runtime/wake_signal.h"
#include "kernels/core/check.h"

namespace firesteel {

template <typename T>
class SpscRing {
 public:
  // `slots` are the preallocated values; `consumer` is notified after every EndPush.
  SpscRing(std::vector<T> slots, WakeSignal* consumer)
      : slots_(std::move(slots)), consumer_(consumer) {
    FIRESTEEL_CHECK(!slots_.empty(), "a ring needs at least one slot");
  }
  SpscRing(const SpscRing&) = delete;
  SpscRing& operator=(const SpscRing&) = delete;

  // Producer. The next free slot, or null when the ring is full. Its old contents are still there.
  T* BeginPush() {
    const uint64_t pushed = pushed_.load(std::memory_order_relaxed);
    if (pushed - popped_.load(std::memory_order_acquire) == slots_.size()) return nullptr;
    return &slots_[pushed % slots_.size()];
  }
  // Producer. Publishes the slot of the last BeginPush.
  void EndPush() {
    pushed_.store(pushed_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    consumer_->Notify();
  }

  // Consumer. The oldest published slot, or null when there is none.
  T* Front() {
    const uint64_t popped = popped_.load(std::memory_order_relaxed);
    if (popped == pushed_.load(std::memory_order_acquire)) return nullptr;
    return &slots_[popped % slots_.size()];
  }
  // Consumer. Gives the slot of Front back.
  void Pop() {
    popped_.store(popped_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

 private:
  std::vector<T> slots_;
  WakeSignal* consumer_;
  std::atomic<uint64_t> pushed_{0};
  std::atomic<uint64_t> popped_{0};
};

}  // namespace firesteel
