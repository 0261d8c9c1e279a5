#include "engine/exec/backend.h"

#include "kernels/cpu/cpu_device.h"

namespace firesteel {

Result<std::unique_ptr<Device>> OpenDevice(DeviceKind kind, int threads) {
  if (kind == DeviceKind::kCpu) return CreateCpuDevice(threads > 0 ? threads : DefaultThreads());
  return Unsupported("device is 'cuda', this build has only 'cpu'");
}

}  // namespace firesteel
