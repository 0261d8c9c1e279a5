#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/row_access.cuh"
#include "kernels/ops/rope/rope.h"

namespace firesteel {
namespace {

constexpr int32_t kHeadsPerBlock = 4;
constexpr int32_t kHeld = 16;  // values of a head that a lane keeps between its passes

// A warp per head of a row. In place: after the sum a lane reads and writes values that no other lane touches.
__global__ void __launch_bounds__(kHeadsPerBlock* kWarpSize) RotateHead(RopeArgs a) {
  AllowNextKernel();
  WaitForEarlierKernels();
  const int64_t row = blockIdx.x;
  if (row >= Min(__ldcg(a.live), a.rows)) return;
  const int32_t position = __ldcg(a.position + row);
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpSize;
  const int32_t head = static_cast<int32_t>(blockIdx.y) * kHeadsPerBlock +
                       static_cast<int32_t>(threadIdx.x) / kWarpSize;
  if (head >= a.heads) return;
  const int64_t first = int64_t{head} * a.head_dim;
  const int32_t tail = a.head_dim - a.table.rope;
  float scale = 1.0F;
  if (a.norm) {
    float held[kHeld];
#pragma unroll
    for (int32_t i = 0; i < kHeld; ++i) {
      const int32_t c = lane + i * kWarpSize;
      held[i] = c < a.head_dim ? LoadFreshElement(a.x, row, first + c) : 0.0F;
    }
    float squares = 0.0F;
#pragma unroll
    for (int32_t i = 0; i < kHeld; ++i) squares += held[i] * held[i];
    for (int32_t c = lane + kHeld * kWarpSize; c < a.head_dim; c += kWarpSize) {
      const float x = LoadFreshElement(a.x, row, first + c);
      squares += x * x;
    }
    const float mean = WarpReduce(squares, AddOp{}) / static_cast<float>(a.head_dim);
    scale = 1.0F / sqrtf(mean + a.eps);
#pragma unroll
    for (int32_t i = 0; i < kHeld; ++i) {
      const int32_t c = lane + i * kWarpSize;
      if (c < tail) StoreElement(a.x, row, first + c, held[i] * scale);
    }
    for (int32_t c = lane + kHeld * kWarpSize; c < tail; c += kWarpSize) {
      StoreElement(a.x, row, first + c, LoadFreshElement(a.x, row, first + c) * scale);
    }
  }
  const int32_t half = a.table.rope / 2;
  const int64_t angles = int64_t{position} * half;
  for (int32_t i = lane; i < half; i += kWarpSize) {
    const int64_t at = first + tail + 2 * i;
    const float s = a.inverse ? -a.table.sin[angles + i] : a.table.sin[angles + i];
    float x = LoadFreshElement(a.x, row, at) * scale;
    float y = LoadFreshElement(a.x, row, at + 1) * scale;
    RotatePair(a.table.cos[angles + i], s, &x, &y);
    StoreElement(a.x, row, at, x);
    StoreElement(a.x, row, at + 1, y);
  }
}

}  // namespace

void RopeCuda(Stream& stream, const RopeArgs& a) {
  if (a.rows == 0) return;
  const dim3 grid(static_cast<uint32_t>(a.rows),
                  static_cast<uint32_t>(CeilDiv(a.heads, kHeadsPerBlock)));
  LaunchEarly(RotateHead, {grid, kHeadsPerBlock * kWarpSize, 0, 1}, CudaStreamOf(stream), a);
}

}  // namespace firesteel
