// The CPU as a device: host memory, an immediate stream, and graphs that are tapes of (function, argument bytes).
#pragma once

#include <memory>

#include "kernels/core/device.h"
#include "kernels/core/parallel_for.h"

namespace firesteel {

class CpuStream final : public Stream {
 public:
  explicit CpuStream(WorkerPool& pool);
  ~CpuStream() override;

  WorkerPool& pool() { return pool_; }

  bool Record(const RecordedOp& op) override;
  void CopyToDevice(void* device, const void* host, int64_t bytes) override;
  void CopyToHost(void* host, const void* device, int64_t bytes) override;
  void CopyOnDevice(void* to, const void* from, int64_t bytes) override;
  void BeginCapture() override;
  Result<std::unique_ptr<Graph>> EndCapture() override;
  Status Synchronize() override { return Status::Ok(); }

 private:
  class Tape;
  WorkerPool& pool_;
  std::unique_ptr<Tape> tape_;  // non-null while capturing
};

// The worker pool behind a CPU stream. REQUIRES: `stream` is a CpuStream, which holds for every op of the CPU column.
inline WorkerPool& PoolOf(Stream& stream) { return static_cast<CpuStream&>(stream).pool(); }

std::unique_ptr<Device> CreateCpuDevice(int threads);

}  // namespace firesteel
