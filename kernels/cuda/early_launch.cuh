// Kernels that may start before the one ahead of them in the stream has ended (programmatic dependent launch).
//
// 1. Such a kernel reads nothing that earlier kernels write, and writes nothing, before WaitForEarlierKernels(). Every thread
//    that does either calls it. Weights and their tables are never written, so they may be read before.
// 2. What earlier kernels wrote is then read past the L1 cache (__ldcg, cp.async.cg): a line may be older than the wait.
// 3. AllowNextKernel() says that the next kernel may take the resources this one leaves; it promises nothing about results.
#pragma once

#include <cuda_runtime.h>

#include <utility>

namespace firesteel {

__device__ inline void WaitForEarlierKernels() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ inline void AllowNextKernel() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

struct LaunchShape {
  dim3 grid;
  unsigned threads;
  size_t shared_bytes;
  unsigned cluster;  // blocks of a cluster along x; 1: what the kernel declares, if anything
};

// Lets a kernel have this much dynamic shared memory.
template <typename... Params>
cudaError_t AllowShared(void (*kernel)(Params...), size_t bytes) {
  constexpr size_t kAlwaysAllowed = 48 << 10;
  if (bytes <= kAlwaysAllowed) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

// Launches a kernel that keeps the rules above. A failure stays in the thread's CUDA error state, as with <<< >>>.
template <typename... Params, typename... Args>
cudaError_t LaunchEarly(void (*kernel)(Params...), const LaunchShape& shape, cudaStream_t stream,
                        Args&&... args) {
  const cudaError_t allowed = AllowShared(kernel, shape.shared_bytes);
  if (allowed != cudaSuccess) return allowed;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = shape.cluster;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = shape.cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

}  // namespace firesteel
