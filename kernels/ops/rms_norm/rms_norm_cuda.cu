#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/row_access.cuh"
#include "kernels/ops/rms_norm/rms_norm.h"

namespace firesteel {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kHeld = 16;  // values of a row that a thread keeps between its passes

// A block per row. y may be x: a thread writes only what it alone reads after the sum.
__global__ void __launch_bounds__(kThreads) NormRow(RmsNormArgs a) {
  const int64_t row = blockIdx.x;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  uint16_t weight[kHeld];
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) {
    const int32_t c = thread + i * kThreads;
    weight[i] = c < a.cols ? a.weight[c] : 0;
  }
  AllowNextKernel();
  WaitForEarlierKernels();
  const int32_t live = __ldcg(a.live);
  float held[kHeld];
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) {
    const int32_t c = thread + i * kThreads;
    held[i] = c < a.cols ? LoadFreshElement(a.x, row, c) : 0.0F;
  }
  if (row >= Min(live, a.rows)) return;
  float squares = 0.0F;
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) squares += held[i] * held[i];
  for (int32_t c = thread + kHeld * kThreads; c < a.cols; c += kThreads) {
    const float x = LoadFreshElement(a.x, row, c);
    squares += x * x;
  }
  const float mean = BlockSum<kThreads>(squares) / static_cast<float>(a.cols);
  const float scale = 1.0F / sqrtf(mean + a.eps);
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) {
    const int32_t c = thread + i * kThreads;
    if (c < a.cols) StoreElement(a.y, row, c, held[i] * scale * Bf16ToFloat(weight[i]));
  }
  for (int32_t c = thread + kHeld * kThreads; c < a.cols; c += kThreads) {
    StoreElement(a.y, row, c, LoadFreshElement(a.x, row, c) * scale * Bf16ToFloat(a.weight[c]));
  }
}

}  // namespace

void RmsNormCuda(Stream& stream, const RmsNormArgs& a) {
  if (a.rows == 0) return;
  LaunchEarly(NormRow, {dim3(static_cast<uint32_t>(a.rows)), kThreads, 0, 1}, CudaStreamOf(stream),
              a);
}

}  // namespace firesteel
