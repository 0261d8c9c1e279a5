#include "kernels/cuda/cuda_module.h"

#include <cstdio>
#include <memory>

#include "kernels/core/kernel_table.h"
#include "kernels/cuda/cuda_device.h"

namespace firesteel {
namespace {

Device* CreateDevice(int32_t ordinal, CudaModuleError* error) {
  Result<std::unique_ptr<Device>> device = CreateCudaDevice(ordinal);
  if (device.ok()) return std::move(device).value().release();
  error->code = device.status().code();
  std::snprintf(error->message, sizeof(error->message), "%s", device.status().message().c_str());
  return nullptr;
}

constexpr CudaModule kModule = {kCudaModuleVersion, sizeof(KernelTable), CreateDevice};

}  // namespace
}  // namespace firesteel

extern "C" __attribute__((visibility("default"))) const firesteel::CudaModule*
FiresteelCudaModule() {
  return &firesteel::kModule;
}
