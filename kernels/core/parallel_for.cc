#include "kernels/core/parallel_for.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "kernels/core/check.h"
#include "kernels/core/math.h"

namespace firesteel {
namespace {

constexpr size_t kScratchAlignment = 64;
// About 20 us on current cores: longer than the gap between two ops of a step, shorter than a scheduling quantum.
constexpr int kSpins = 4000;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void WorkerScratch::Free::operator()(std::byte* p) const { std::free(p); }

WorkerScratch::WorkerScratch(size_t bytes)
    : data_(static_cast<std::byte*>(
          std::aligned_alloc(kScratchAlignment, RoundUp(bytes, kScratchAlignment)))),
      size_(RoundUp(bytes, kScratchAlignment)) {
  FIRESTEEL_CHECK(data_ != nullptr, "out of memory for worker scratch");
}

std::byte* WorkerScratch::Bytes(int64_t count) {
  const size_t begin = RoundUp(used_, kScratchAlignment);
  used_ = begin + static_cast<size_t>(count);
  FIRESTEEL_CHECK(used_ <= size_, "worker scratch holds " + std::to_string(size_) +
                                      " bytes, a kernel needs " + std::to_string(used_));
  return data_.get() + begin;
}

WorkerPool::WorkerPool(int threads, size_t scratch_bytes_per_worker) {
  FIRESTEEL_CHECK(threads >= 1, "a worker pool needs a worker");
  for (int i = 0; i < threads; ++i) {
    scratch_.push_back(std::make_unique<WorkerScratch>(scratch_bytes_per_worker));
  }
  for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i] { WorkerLoop(i); });
}

WorkerPool::~WorkerPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::RunErased(int64_t count, int64_t grain, ErasedBody body, void* context) {
  if (count <= 0) return;
  if (threads_.empty() || count <= grain) {
    scratch_[0]->Reset();
    body(context, 0, count, *scratch_[0]);
    return;
  }
  body_ = body;
  context_ = context;
  count_ = count;
  grain_ = grain;
  remaining_.store(static_cast<int32_t>(threads_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  RunShare(0);
  for (int spins = 0; remaining_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins) {
      Pause();
    } else {
      const int32_t left = remaining_.load(std::memory_order_acquire);
      if (left != 0) remaining_.wait(left, std::memory_order_acquire);
    }
  }
}

void WorkerPool::RunShare(int worker) {
  const int64_t grains = CeilDiv(count_, grain_);
  const int64_t workers = static_cast<int64_t>(scratch_.size());
  const int64_t begin = std::min(count_, grains * worker / workers * grain_);
  const int64_t end = std::min(count_, grains * (worker + 1) / workers * grain_);
  if (begin >= end) return;
  WorkerScratch& scratch = *scratch_[static_cast<size_t>(worker)];
  scratch.Reset();
  body_(context_, begin, end, scratch);
}

void WorkerPool::WorkerLoop(int worker) {
  uint32_t seen = 0;
  while (true) {
    uint32_t now = generation_.load(std::memory_order_acquire);
    for (int spins = 0; now == seen && spins < kSpins; ++spins) {
      Pause();
      now = generation_.load(std::memory_order_acquire);
    }
    if (now == seen) {
      generation_.wait(seen, std::memory_order_acquire);
      continue;
    }
    seen = now;
    if (stop_.load(std::memory_order_relaxed)) return;
    RunShare(worker);
    if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) remaining_.notify_one();
  }
}

int DefaultThreads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace firesteel
