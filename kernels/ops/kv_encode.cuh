// Writes one key/value row into a paged cache by a thread block: the same bytes as EncodeKvRow.
#pragma once

#include "kernels/core/float_codec.h"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/ops/kv_record.h"

namespace firesteel {

// The smallest amax that a scale is taken from, as EncodeKvRow has it.
inline constexpr float kLeastAmax = 1e-4F;

__device__ inline float Magnitude(float x) { return x < 0 ? -x : x; }

// A warp per block of kFp8Block values, then the bf16 tail.
template <int kThreads>
__device__ void EncodeFp8(const KvPages& pages, int64_t row, const float* x) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % kWarpSize;
  const int32_t nope = pages.width - pages.rope;
  uint8_t* codes = reinterpret_cast<uint8_t*>(KvRowData(pages, row));
  uint8_t* scales = reinterpret_cast<uint8_t*>(KvRowScale(pages, row));
  for (int32_t b = thread / kWarpSize; b < nope / kFp8Block; b += kThreads / kWarpSize) {
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

template <int kThreads>
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
template <int kThreads>
__device__ void EncodeKvRowInBlock(const KvPages& pages, int64_t row, const float* x) {
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
    case KvFormat::kFp8: return EncodeFp8<kThreads>(pages, row, x);
    case KvFormat::kFp8Index: return EncodeFp8Index<kThreads>(pages, row, x);
  }
}

}  // namespace firesteel
