#include "kernels/cuda/cuda_stream.h"

#include <cstring>
#include <string>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/math.h"

namespace firesteel {
namespace {

// A step's plan and results together stay far below this; larger copies happen at start-up only.
constexpr size_t kPinnedBytes = size_t{8} << 20;
constexpr size_t kPinnedAlignment = 64;
// Compute capability of Hopper. Its architecture-specific instructions exist on no later one.
constexpr int kHopperMajor = 9;

class CudaGraph final : public Graph {
 public:
  CudaGraph(cudaGraphExec_t graph, size_t nodes) : graph_(graph), nodes_(nodes) {}
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // A failed launch stays in the thread's error state for Synchronize().
  void Replay(Stream& stream) override { cudaGraphLaunch(graph_, CudaStreamOf(stream)); }
  size_t num_nodes() const override { return nodes_; }

 private:
  cudaGraphExec_t graph_;
  size_t nodes_;
};

}  // namespace

Status CudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status::Ok();
  return Unavailable(std::string(what) + " failed: " + cudaGetErrorName(error) + " (" +
                     cudaGetErrorString(error) + ")");
}

Result<std::unique_ptr<CudaStream>> CudaStream::Create() {
  int device = 0;
  int multiprocessors = 0;
  FIRESTEEL_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "finding the current device"));
  FIRESTEEL_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
                 "counting multiprocessors"));
  int major = 0;
  FIRESTEEL_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                 "reading the compute capability"));
  cudaStream_t handle = nullptr;
  FIRESTEEL_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking),
                                       "creating a CUDA stream"));
  void* pinned = nullptr;
  const cudaError_t error = cudaMallocHost(&pinned, kPinnedBytes);
  if (error != cudaSuccess) {
    cudaStreamDestroy(handle);
    return CudaStatus(error, "allocating pinned host memory");
  }
  return std::unique_ptr<CudaStream>(new CudaStream(handle, static_cast<std::byte*>(pinned),
                                                    multiprocessors, major == kHopperMajor));
}

CudaStream::~CudaStream() {
  cudaStreamSynchronize(handle_);
  cudaFreeHost(pinned_);
  cudaStreamDestroy(handle_);
}

void CudaStream::Keep(cudaError_t error, const char* what) {
  if (error != cudaSuccess && first_error_.ok()) first_error_ = CudaStatus(error, what);
}

std::byte* CudaStream::TakePinned(size_t bytes) {
  if (bytes > kPinnedBytes - pinned_used_) return nullptr;
  std::byte* taken = pinned_ + pinned_used_;
  pinned_used_ = Min(kPinnedBytes, pinned_used_ + RoundUp(bytes, kPinnedAlignment));
  return taken;
}

void CudaStream::CopyToDevice(void* device, const void* host, int64_t bytes) {
  if (bytes == 0) return;
  const size_t count = static_cast<size_t>(bytes);
  const void* source = host;
  if (std::byte* pinned = TakePinned(count)) {
    std::memcpy(pinned, host, count);
    source = pinned;
  }
  Keep(cudaMemcpyAsync(device, source, count, cudaMemcpyHostToDevice, handle_),
       "a copy to the device");
  // Pageable memory may still be read after the call returns.
  if (source == host) Keep(cudaStreamSynchronize(handle_), "a copy to the device");
}

void CudaStream::CopyToHost(void* host, const void* device, int64_t bytes) {
  if (bytes == 0) return;
  const size_t count = static_cast<size_t>(bytes);
  std::byte* pinned = TakePinned(count);
  if (pinned != nullptr) pending_.push_back({host, pinned, count});
  Keep(cudaMemcpyAsync(pinned != nullptr ? pinned : host, device, count, cudaMemcpyDeviceToHost,
                       handle_),
       "a copy to the host");
}

void CudaStream::CopyOnDevice(void* to, const void* from, int64_t bytes) {
  Keep(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, handle_),
       "a copy on the device");
}

void CudaStream::BeginCapture() {
  Keep(cudaStreamBeginCapture(handle_, cudaStreamCaptureModeThreadLocal), "beginning a capture");
}

Result<std::unique_ptr<Graph>> CudaStream::EndCapture() {
  cudaGraph_t captured = nullptr;
  FIRESTEEL_RETURN_IF_ERROR(
      CudaStatus(cudaStreamEndCapture(handle_, &captured), "capturing a step"));
  // A launch that was refused during capture left its error behind.
  const cudaError_t launch = cudaGetLastError();
  size_t nodes = 0;
  cudaGraphExec_t graph = nullptr;
  cudaError_t error = launch;
  if (error == cudaSuccess) error = cudaGraphGetNodes(captured, nullptr, &nodes);
  if (error == cudaSuccess) error = cudaGraphInstantiate(&graph, captured, 0);
  if (error == cudaSuccess) error = cudaGraphUpload(graph, handle_);
  cudaGraphDestroy(captured);
  FIRESTEEL_RETURN_IF_ERROR(CudaStatus(error, "instantiating a captured step"));
  return std::unique_ptr<Graph>(std::make_unique<CudaGraph>(graph, nodes));
}

Status CudaStream::Synchronize() {
  Keep(cudaStreamSynchronize(handle_), "a device step");
  Keep(cudaGetLastError(), "a kernel launch");
  for (const PendingCopy& copy : pending_) std::memcpy(copy.host, copy.pinned, copy.bytes);
  pending_.clear();
  pinned_used_ = 0;
  return std::exchange(first_error_, Status::Ok());
}

}  // namespace firesteel
