// A CUDA module of another build: only the head of its table may be read.
#include "kernels/cuda/cuda_module.h"

namespace firesteel {
namespace {

constexpr CudaModule kModule = {kCudaModuleVersion + 1, 8, nullptr};

}  // namespace
}  // namespace firesteel

extern "C" __attribute__((visibility("default"))) const firesteel::CudaModule*
FiresteelCudaModule() {
  return &firesteel::kModule;
}
