// Reductions over a warp and over a block, in one fixed tree: the result depends on the values and the block size alone.
#pragma once

#include <cuda_runtime.h>

namespace firesteel {

inline constexpr int kWarpSize = 32;

struct AddOp {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct MaxOp {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

// Every lane gets the result.
template <typename T, typename Op>
__device__ T WarpReduce(T value, Op op) {
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffU, value, step));
  }
  return value;
}

// Every thread of the block gets the result; `identity` stands for missing warps. All threads must call it. May be called
// repeatedly.
template <int kThreads, typename T, typename Op>
__device__ T BlockReduce(T value, T identity, Op op) {
  static_assert(kThreads % kWarpSize == 0 && kThreads <= 1024);
  constexpr int kWarps = kThreads / kWarpSize;
  __shared__ T partial[kWarps];
  value = WarpReduce(value, op);
  if constexpr (kWarps == 1) return value;
  __syncthreads();  // an earlier call's partials have been read
  if (threadIdx.x % kWarpSize == 0) partial[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  return WarpReduce(lane < kWarps ? partial[lane] : identity, op);
}

template <int kThreads>
__device__ float BlockSum(float value) {
  return BlockReduce<kThreads>(value, 0.0F, AddOp{});
}

}  // namespace firesteel
