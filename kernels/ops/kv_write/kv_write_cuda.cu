#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/row_access.cuh"
#include "kernels/ops/kv_encode.cuh"
#include "kernels/ops/kv_write/kv_write.h"

namespace firesteel {
namespace {

constexpr int32_t kThreads = 128;
constexpr int32_t kHeld = 4;  // values of a row that a thread keeps between its passes

// A block per row.
__global__ void __launch_bounds__(kThreads) WriteRow(KvWriteArgs a) {
  extern __shared__ float values[];  // [pages.width]
  const int64_t row = blockIdx.x;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t width = a.pages.width;
  AllowNextKernel();
  WaitForEarlierKernels();
  const int32_t live = __ldcg(a.live);
  const int32_t cache_row = __ldcg(a.cache_row + row);
  const int32_t position = __ldcg(a.position + row);
  float held[kHeld];
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) {
    const int32_t c = thread + i * kThreads;
    held[i] = c < width ? LoadFreshElement(a.kv, row, c) : 0.0F;
  }
  if (row >= Min(live, a.rows) || cache_row < 0) return;
  float squares = 0.0F;
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) squares += held[i] * held[i];
  for (int32_t c = thread + kHeld * kThreads; c < width; c += kThreads) {
    const float x = LoadFreshElement(a.kv, row, c);
    squares += x * x;
  }
  const float mean = BlockSum<kThreads>(squares) / static_cast<float>(width);
  const float scale = 1.0F / sqrtf(mean + a.eps);
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) {
    const int32_t c = thread + i * kThreads;
    if (c < width) values[c] = held[i] * scale * Bf16ToFloat(a.weight[c]);
  }
  for (int32_t c = thread + kHeld * kThreads; c < width; c += kThreads) {
    values[c] = LoadFreshElement(a.kv, row, c) * scale * Bf16ToFloat(a.weight[c]);
  }
  __syncthreads();
  const int32_t half = a.rope.rope / 2;
  const int64_t angles = int64_t{position} * half;
  float* tail = values + width - a.rope.rope;
  for (int32_t i = thread; i < half; i += kThreads) {
    RotatePair(a.rope.cos[angles + i], a.rope.sin[angles + i], &tail[2 * i], &tail[2 * i + 1]);
  }
  __syncthreads();
  EncodeKvRowInBlock<kThreads>(a.pages, cache_row, values);
}

}  // namespace

void KvWriteCuda(Stream& stream, const KvWriteArgs& a) {
  if (a.rows == 0) return;
  const size_t shared_bytes = static_cast<size_t>(a.pages.width) * sizeof(float);
  LaunchEarly(WriteRow, {dim3(static_cast<uint32_t>(a.rows)), kThreads, shared_bytes, 1},
              CudaStreamOf(stream), a);
}

}  // namespace firesteel
