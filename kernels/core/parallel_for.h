// A fixed pool of CPU workers. The caller is worker 0. Run cuts [0, count) into chunks that the caller and the workers
// claim one by one, and returns when all are done. Which worker computes an item never influences its value: items are
// independent by contract. Claiming keeps a step moving when a neighbour process takes a core: a worker that is not
// scheduled has claimed nothing, and the caller does its share.
//
// Threads: one caller at a time (the rank thread). Workers spin briefly between the jobs of a step, then sleep.
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
  // Claims and runs chunks of job `generation` until none is left.
  void RunChunks(uint32_t generation, int worker);

  std::vector<std::unique_ptr<WorkerScratch>>
      scratch_;  // one per worker, constant after construction
  std::vector<std::thread> threads_;

  // The current job. A ticket is (generation << 32 | next chunk). A worker may read the fields while the caller is
  // already writing those of the next job, so they are atomics; what it read is used only if it then claims a chunk of
  // the same generation, and a job is not replaced before every chunk of it was claimed and done.
  std::atomic<ErasedBody> body_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> count_{0};
  std::atomic<int64_t> chunk_{1};
  std::atomic<uint32_t> num_chunks_{0};
  std::atomic<uint64_t> ticket_{0};
  std::atomic<uint32_t> unfinished_{0};  // chunks of the current job that are not done
  std::atomic<uint32_t> generation_{0};  // what sleeping workers wait on
  std::atomic<int32_t> sleepers_{0};
  std::atomic<bool> stop_{false};
};

// Workers to use when the user names none: the CPUs this process may run on.
int DefaultThreads();

}  // namespace firesteel
