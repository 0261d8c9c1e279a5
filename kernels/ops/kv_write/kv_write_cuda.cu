#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/row_access.cuh"
#include "kernels/ops/kv_encode.cuh"
#include "kernels/ops/kv_write/kv_write.h"

namespace firesteel {
namespace {

constexpr int32_t kThreads = 128;
// A block per row.
__global__ void __launch_bounds__(kThreads) WriteRow(KvWriteArgs a) {
  extern __shared__ float values[];  // [pages.width]
  const int64_t row = blockIdx.x;
  if (row >= Min(*a.live, a.rows) || a.cache_row[row] < 0) return;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t width = a.pages.width;
  float squares = 0.0F;
  for (int32_t c = thread; c < width; c += kThreads) {
    const float x = LoadElement(a.kv, row, c);
    squares += x * x;
  }
  const float mean = BlockSum<kThreads>(squares) / static_cast<float>(width);
  const float scale = 1.0F / sqrtf(mean + a.eps);
  for (int32_t c = thread; c < width; c += kThreads) {
    values[c] = LoadElement(a.kv, row, c) * scale * Bf16ToFloat(a.weight[c]);
  }
  __syncthreads();
  const int32_t half = a.rope.rope / 2;
  const int64_t angles = int64_t{a.position[row]} * half;
  float* tail = values + width - a.rope.rope;
  for (int32_t i = thread; i < half; i += kThreads) {
    RotatePair(a.rope.cos[angles + i], a.rope.sin[angles + i], &tail[2 * i], &tail[2 * i + 1]);
  }
  __syncthreads();
  EncodeKvRowInBlock<kThreads>(a.pages, a.cache_row[row], values);
}

}  // namespace

void KvWriteCuda(Stream& stream, const KvWriteArgs& a) {
  if (a.rows == 0) return;
  const size_t shared_bytes = static_cast<size_t>(a.pages.width) * sizeof(float);
  WriteRow<<<static_cast<uint32_t>(a.rows), kThreads, shared_bytes, CudaStreamOf(stream)>>>(a);
}

}  // namespace firesteel
