// A CUDA stream of the rank, as the operations of the CUDA column see it.
//
// Operations launch into it and return; nothing waits. A failed launch stays in the thread's CUDA error state and a
// failed kernel in the context's: Synchronize() reports either, once per step. Small host copies go through pinned memory, so
// that a step enqueues its input, its graph and its results without waiting in between.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/core/device.h"

namespace firesteel {

// Unavailable with CUDA's own name and text of the error; Ok for cudaSuccess.
Status CudaStatus(cudaError_t error, const char* what);

class CudaStream final : public Stream {
 public:
  static Result<std::unique_ptr<CudaStream>> Create();
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t handle() const { return handle_; }
  // Of the stream's device. Kernels choose tile sizes by it where every choice gives the same bits.
  int multiprocessors() const { return multiprocessors_; }
  // Whether the kernels under sm90/ run on it. Everything else runs on later GPUs too.
  bool hopper() const { return hopper_; }

  // A CUDA graph is captured by the driver, not by a tape: operations always run.
  bool Record(const RecordedOp&) override { return false; }

  // The host bytes are free again when this returns.
  void CopyToDevice(void* device, const void* host, int64_t bytes) override;
  // The host bytes are there after Synchronize().
  void CopyToHost(void* host, const void* device, int64_t bytes) override;
  void CopyOnDevice(void* to, const void* from, int64_t bytes) override;

  // Thread-local capture: other threads may use CUDA meanwhile.
  void BeginCapture() override;
  Result<std::unique_ptr<Graph>> EndCapture() override;

  Status Synchronize() override;

 private:
  struct PendingCopy {
    void* host;
    const std::byte* pinned;
    size_t bytes;
  };

  CudaStream(cudaStream_t handle, std::byte* pinned, int32_t multiprocessors, bool hopper)
      : handle_(handle), pinned_(pinned), multiprocessors_(multiprocessors), hopper_(hopper) {}
  // Pinned bytes that no copy in flight uses, or nullptr when this copy does not fit.
  std::byte* TakePinned(size_t bytes);
  void Keep(cudaError_t error, const char* what);

  cudaStream_t handle_;
  std::byte* pinned_;
  int32_t multiprocessors_;
  bool hopper_;
  size_t pinned_used_ = 0;
  std::vector<PendingCopy> pending_;
  Status first_error_ = Status::Ok();
};

// REQUIRES: `stream` is a CudaStream, which holds for every op of the CUDA column.
inline cudaStream_t CudaStreamOf(Stream& stream) {
  return static_cast<CudaStream&>(stream).handle();
}
inline int32_t MultiprocessorsOf(Stream& stream) {
  return static_cast<CudaStream&>(stream).multiprocessors();
}
inline bool IsHopper(Stream& stream) { return static_cast<CudaStream&>(stream).hopper(); }

}  // namespace firesteel
