// A CUDA module without CUDA: GPU 0 is the CPU device in disguise, every other one is missing.
#include <cstdio>

#include "kernels/core/kernel_table.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/cuda_module.h"

namespace firesteel {
namespace {

Device* CreateDevice(int32_t ordinal, CudaModuleError* error) {
  if (ordinal == 0) return CreateCpuDevice(1).release();
  error->code = StatusCode::kUnavailable;
  std::snprintf(error->message, sizeof(error->message), "GPU %d was asked for, 1 is visible",
                ordinal);
  return nullptr;
}

constexpr CudaModule kModule = {kCudaModuleVersion, sizeof(KernelTable), CreateDevice};

}  // namespace
}  // namespace firesteel

extern "C" __attribute__((visibility("default"))) const firesteel::CudaModule*
FiresteelCudaModule() {
  return &firesteel::kModule;
}
