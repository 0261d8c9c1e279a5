#include "kernels/cuda/cuda_device.h"

#include <cuda_runtime.h>

#include <string>
#include <utility>

#include "kernels/core/math.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/product_peak.h"

namespace firesteel {
namespace {

// Hopper, and data-centre Blackwell by what the driver compiles from PTX. Later GPUs of other families have less than half
// of the shared memory that these kernels take.
constexpr int kHopperMajor = 9;
constexpr int kBlackwellMajor = 10;

class CudaDevice final : public Device {
 public:
  CudaDevice(std::unique_ptr<CudaStream> stream, std::string name)
      : stream_(std::move(stream)), name_(std::move(name)) {}

  const KernelTable& kernels() const override { return CudaKernels(); }
  Stream& stream() override { return *stream_; }

  void* Allocate(int64_t bytes) override {
    const size_t count = static_cast<size_t>(Max(bytes, int64_t{1}));
    void* pointer = nullptr;
    if (cudaMalloc(&pointer, count) != cudaSuccess) {
      cudaGetLastError();  // out of memory is the caller's to report, not the stream's
      return nullptr;
    }
    // On the rank's own stream, so that later work is ordered behind it.
    cudaMemsetAsync(pointer, 0, count, stream_->handle());
    return pointer;
  }
  void Free(void* pointer) override { cudaFree(pointer); }

  bool reads_host_memory() const override { return false; }
  DeviceMemory memory() const override {
    size_t free = 0;
    size_t total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
      cudaGetLastError();  // the plan then goes without; a buffer that does not fit is still reported
      return {};
    }
    return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
  }
  Result<double> MeasureProductPeak() override { return firesteel::MeasureProductPeak(*stream_); }
  std::string Describe() const override { return "cuda (" + name_ + ")"; }

 private:
  std::unique_ptr<CudaStream> stream_;
  std::string name_;
};

}  // namespace

Result<std::unique_ptr<Device>> CreateCudaDevice(int ordinal) {
  int count = 0;
  FIRESTEEL_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "looking for a GPU"));
  if (ordinal < 0 || ordinal >= count) {
    return Unavailable("GPU " + std::to_string(ordinal) + " was asked for, " +
                       std::to_string(count) + " are visible");
  }
  cudaDeviceProp properties{};
  FIRESTEEL_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, ordinal), "reading a GPU's properties"));
  if (properties.major != kHopperMajor && properties.major != kBlackwellMajor) {
    return Unsupported("GPU " + std::to_string(ordinal) + " (" + properties.name +
                       ") has compute capability " + std::to_string(properties.major) + "." +
                       std::to_string(properties.minor) + ", these kernels need 9.0 or 10.x");
  }
  FIRESTEEL_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal), "selecting a GPU"));
  FIRESTEEL_ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> stream, CudaStream::Create());
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(std::move(stream), properties.name));
}

}  // namespace firesteel
