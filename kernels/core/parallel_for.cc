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
constexpr int64_t kChunksPerWorker = 3;
constexpr uint32_t kNoChunk = 0xffffffffU;  // a ticket past every chunk count

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
  generation_.fetch_add(1, std::memory_order_seq_cst);
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
  const int64_t shares = static_cast<int64_t>(scratch_.size()) * kChunksPerWorker;
  const int64_t chunk = RoundUp(CeilDiv(count, shares), grain);
  const uint32_t chunks = static_cast<uint32_t>(CeilDiv(count, chunk));
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  // Nothing can be claimed from here on: a worker that is late for the last job must not take the new chunk count for
  // room in its own. It sees that count (release, acquire) only after this ticket.
  ticket_.store(uint64_t{generation} << 32 | kNoChunk, std::memory_order_relaxed);
  body_.store(body, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  count_.store(count, std::memory_order_relaxed);
  chunk_.store(chunk, std::memory_order_relaxed);
  num_chunks_.store(chunks, std::memory_order_release);
  unfinished_.store(chunks, std::memory_order_relaxed);
  ticket_.store(uint64_t{generation} << 32, std::memory_order_release);
  // Sequentially consistent with a worker's check before it sleeps: either it sees the new generation, or we see it.
  generation_.store(generation, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) generation_.notify_all();
  RunChunks(generation, 0);
  for (int spins = 0;; ++spins) {
    const uint32_t left = unfinished_.load(std::memory_order_acquire);
    if (left == 0) return;
    if (spins < kSpins) {
      Pause();
    } else {
      unfinished_.wait(left, std::memory_order_acquire);
    }
  }
}

void WorkerPool::RunChunks(uint32_t generation, int worker) {
  WorkerScratch& scratch = *scratch_[static_cast<size_t>(worker)];
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(ticket >> 32) == generation) {
    const ErasedBody body = body_.load(std::memory_order_relaxed);
    void* context = context_.load(std::memory_order_relaxed);
    const int64_t count = count_.load(std::memory_order_relaxed);
    const int64_t chunk = chunk_.load(std::memory_order_relaxed);
    const uint32_t index = static_cast<uint32_t>(ticket);
    if (index >= num_chunks_.load(std::memory_order_acquire)) return;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    scratch.Reset();
    body(context, index * chunk, Min(count, (index + 1) * chunk), scratch);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
    ticket = ticket_.load(std::memory_order_acquire);
  }
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
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      if (generation_.load(std::memory_order_seq_cst) == seen) {
        generation_.wait(seen, std::memory_order_seq_cst);
      }
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
      continue;
    }
    seen = now;
    if (stop_.load(std::memory_order_relaxed)) return;
    RunChunks(now, worker);
  }
}

int DefaultThreads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace firesteel
