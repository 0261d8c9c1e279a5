#include "engine/exec/backend.h"

#include "kernels/core/cuda_loader.h"
#include "kernels/cpu/cpu_device.h"

namespace firesteel {

Result<std::unique_ptr<Device>> OpenDevice(DeviceKind kind, int threads) {
  if (kind == DeviceKind::kCpu) return CreateCpuDevice(threads > 0 ? threads : DefaultThreads());
  return OpenCudaDevice(0);
}

}  // namespace firesteel
