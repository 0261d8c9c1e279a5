// A fixed pool of CPU workers. The caller is worker 0; Run splits [0, count) into contiguous ranges and returns when all
// are done. Which worker computes an item never influences its value: items are independent by contract.
//
// Threads: one caller at a time (the rank thread). Workers spin briefly between jobs of a step, then sleep.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace firesteel {

// Per-worker scratch memory, bump-allocated inside one Run call. REQUIRES: requests fit the pool's scratch size.
class WorkerScratch {
 public:
  explicit WorkerScratch(size_t bytes);
  void Reset() { used_ = 0; }
  float* Floats(int64_t count) { return reinterpret_cast<float*>(Bytes(count * 4)); }
  std::byte* Bytes(int64_t count);
  // Forgets what was taken after `mark`; used by loops that reuse one area.
  size_t Mark() const { return used_; }
  void Rewind(size_t mark) { used_ = mark; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_;
  size_t used_ = 0;
};

class WorkerPool {
 public:
  // `threads` >= 1 workers, the caller included.
  WorkerPool(int threads, size_t scratch_bytes_per_worker);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const { return static_cast<int>(scratch_.size()); }

  // body(begin, end, scratch) over a partition of [0, count) whose inner borders are multiples of `grain`. Runs on the
  // caller alone when count <= grain.
  template <typename Body>
  void Run(int64_t count, int64_t grain, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    RunErased(
        count, grain,
        [](void* context, int64_t begin, int64_t end, WorkerScratch& scratch) {
          (*static_cast<Plain*>(context))(begin, end, scratch);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using ErasedBody = void (*)(void*, int64_t, int64_t, WorkerScratch&);
  void RunErased(int64_t count, int64_t grain, ErasedBody body, void* context);
  void WorkerLoop(int worker);
  void RunShare(int worker);

  std::vector<std::unique_ptr<WorkerScratch>> scratch_;  // one per worker, constant after construction
  std::vector<std::thread> threads_;

  // The current job: written by the caller before `generation_` is bumped (release), read by workers after they see the
  // new generation (acquire); `remaining_` reaching 0 (acq_rel) hands everything back.
  ErasedBody body_ = nullptr;
  void* context_ = nullptr;
  int64_t count_ = 0;
  int64_t grain_ = 1;
  std::atomic<uint32_t> generation_{0};
  std::atomic<int32_t> remaining_{0};
  std::atomic<bool> stop_{false};
};

// Workers to use when the user names none: the CPUs this process may run on.
int DefaultThreads();

}  // namespace firesteel
