#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/row_access.cuh"
#include "kernels/ops/kv_write/kv_write.h"

namespace firesteel {
namespace {

constexpr int32_t kThreads = 128;
constexpr int32_t kWarps = kThreads / kWarpSize;
// The smallest amax that a scale is taken from, as EncodeKvRow has it.
constexpr float kLeastAmax = 1e-4F;

__device__ float Magnitude(float x) { return x < 0 ? -x : x; }

// A warp per block of kFp8Block values, then the bf16 tail.
__device__ void EncodeFp8(const KvPages& pages, int64_t row, const float* x) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % kWarpSize;
  const int32_t nope = pages.width - pages.rope;
  uint8_t* codes = reinterpret_cast<uint8_t*>(KvRowData(pages, row));
  uint8_t* scales = reinterpret_cast<uint8_t*>(KvRowScale(pages, row));
  for (int32_t b = thread / kWarpSize; b < nope / kFp8Block; b += kWarps) {
    const int32_t begin = b * kFp8Block;
    float amax = kLeastAmax;
    for (int32_t i = lane; i < kFp8Block; i += kWarpSize) amax = Max(amax, Magnitude(x[begin + i]));
    const uint8_t exponent = ScaleExponent(WarpReduce(amax, MaxOp{}), 448.0F);
    if (lane == 0) scales[b] = exponent;
    const float scale = E8M0ToFloat(exponent);
    for (int32_t i = lane; i < kFp8Block; i += kWarpSize) {
      codes[begin + i] = FloatToE4M3(x[begin + i] / scale);
    }
  }
  uint16_t* rope = reinterpret_cast<uint16_t*>(codes + nope);
  for (int32_t i = thread; i < pages.rope; i += kThreads) rope[i] = FloatToBf16(x[nope + i]);
}

__device__ void EncodeFp8Index(const KvPages& pages, int64_t row, const float* x) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  float amax = kLeastAmax;
  for (int32_t i = thread; i < pages.width; i += kThreads) amax = Max(amax, Magnitude(x[i]));
  const float scale = BlockReduce<kThreads>(amax, kLeastAmax, MaxOp{}) / 448.0F;
  if (thread == 0) *reinterpret_cast<float*>(KvRowScale(pages, row)) = scale;
  uint8_t* codes = reinterpret_cast<uint8_t*>(KvRowData(pages, row));
  for (int32_t i = thread; i < pages.width; i += kThreads) codes[i] = FloatToE4M3(x[i] / scale);
}

// EncodeKvRow by a block: the same bytes. All threads must call it.
__device__ void EncodeRow(const KvPages& pages, int64_t row, const float* x) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  switch (pages.format) {
    case KvFormat::kF32: {
      float* out = reinterpret_cast<float*>(KvRowData(pages, row));
      for (int32_t i = thread; i < pages.width; i += kThreads) out[i] = x[i];
      return;
    }
    case KvFormat::kBf16: {
      uint16_t* out = reinterpret_cast<uint16_t*>(KvRowData(pages, row));
      for (int32_t i = thread; i < pages.width; i += kThreads) out[i] = FloatToBf16(x[i]);
      return;
    }
    case KvFormat::kFp8: return EncodeFp8(pages, row, x);
    case KvFormat::kFp8Index: return EncodeFp8Index(pages, row, x);
  }
}

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
  EncodeRow(a.pages, a.cache_row[row], values);
}

}  // namespace

void KvWriteCuda(Stream& stream, const KvWriteArgs& a) {
  if (a.rows == 0) return;
  const size_t shared_bytes = static_cast<size_t>(a.pages.width) * sizeof(float);
  WriteRow<<<static_cast<uint32_t>(a.rows), kThreads, shared_bytes, CudaStreamOf(stream)>>>(a);
}

}  // namespace firesteel
