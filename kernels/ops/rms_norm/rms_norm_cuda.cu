#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/row_access.cuh"
#include "kernels/ops/rms_norm/rms_norm.h"

namespace firesteel {
namespace {

constexpr int32_t kThreads = 256;

// A block per row. y may be x: a thread writes only what it alone reads after the sum.
__global__ void __launch_bounds__(kThreads) NormRow(RmsNormArgs a) {
  const int64_t row = blockIdx.x;
  if (row >= Min(*a.live, a.rows)) return;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  float squares = 0.0F;
  for (int32_t c = thread; c < a.cols; c += kThreads) {
    const float x = LoadElement(a.x, row, c);
    squares += x * x;
  }
  const float mean = BlockSum<kThreads>(squares) / static_cast<float>(a.cols);
  const float scale = 1.0F / sqrtf(mean + a.eps);
  for (int32_t c = thread; c < a.cols; c += kThreads) {
    StoreElement(a.y, row, c, LoadElement(a.x, row, c) * scale * Bf16ToFloat(a.weight[c]));
  }
}

}  // namespace

void RmsNormCuda(Stream& stream, const RmsNormArgs& a) {
  if (a.rows == 0) return;
  NormRow<<<static_cast<uint32_t>(a.rows), kThreads, 0, CudaStreamOf(stream)>>>(a);
}

}  // namespace firesteel
