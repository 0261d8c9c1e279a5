// Choices over a row of a vocabulary by one block: argmax, softmax and draws, as sampling_math.h defines them. Every result
// depends on the row and the block size alone. All threads of the block must call them; all get the result.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/core/float_codec.h"
#include "kernels/core/math.h"
#include "kernels/core/philox.h"
#include "kernels/cuda/block_reduce.cuh"

namespace firesteel {

// An entry of a row.
struct Ranked {
  float value;
  int32_t index;
};

// Whether a comes before b: the larger value, NaN behind every number, ties to the lower index. A total order.
__device__ inline bool Before(const Ranked& a, const Ranked& b) {
  const bool a_is_nan = isnan(a.value);
  const bool b_is_nan = isnan(b.value);
  if (a_is_nan != b_is_nan) return b_is_nan;
  if (!a_is_nan && a.value != b.value) return a.value > b.value;
  return a.index < b.index;
}

// Behind every entry of a row.
__device__ inline Ranked LastRanked() { return {BitsFloat(0x7fc00000U), INT32_MAX}; }

__device__ inline Ranked WarpFirst(Ranked entry) {
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    const Ranked other{__shfl_xor_sync(0xffffffffU, entry.value, step),
                       __shfl_xor_sync(0xffffffffU, entry.index, step)};
    if (Before(other, entry)) entry = other;
  }
  return entry;
}

template <int kThreads>
__device__ Ranked BlockFirst(Ranked entry) {
  static_assert(kThreads % kWarpSize == 0 && kThreads <= 1024);
  constexpr int kWarps = kThreads / kWarpSize;
  __shared__ Ranked partial[kWarps];
  entry = WarpFirst(entry);
  __syncthreads();  // an earlier call's partials have been read
  if (threadIdx.x % kWarpSize == 0) partial[threadIdx.x / kWarpSize] = entry;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  return WarpFirst(lane < kWarps ? partial[lane] : LastRanked());
}

// ArgMax of sampling_math.h; `value_at(i)` is entry i.
template <int kThreads, typename ValueAt>
__device__ Ranked BlockArgMax(ValueAt value_at, int32_t count) {
  Ranked best = LastRanked();
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) {
    const Ranked entry{value_at(i), i};
    if (Before(entry, best)) best = entry;
  }
  return BlockFirst<kThreads>(best);
}

// p = softmax(scale * x), visible to the whole block; x may be p. Returns the largest of p.
template <int kThreads>
__device__ float BlockSoftmax(const float* x, float scale, int32_t count, float* p) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  Ranked best = LastRanked();
  for (int32_t i = thread; i < count; i += kThreads) {
    const Ranked entry{x[i] * scale, i};
    p[i] = entry.value;
    if (Before(entry, best)) best = entry;
  }
  const float top = BlockFirst<kThreads>(best).value;
  float sum = 0.0F;
  for (int32_t i = thread; i < count; i += kThreads) {
    const float e = expf(p[i] - top);
    p[i] = e;
    sum += e;
  }
  const float inverse = 1.0F / BlockSum<kThreads>(sum);
  for (int32_t i = thread; i < count; i += kThreads) p[i] *= inverse;
  __syncthreads();
  return inverse;  // the best entry's exponential is exactly 1
}

// DrawIndex of sampling_math.h, but -1 when no weight is positive; `weight_at(i)` is the weight of entry i.
template <int kThreads, typename WeightAt>
__device__ int32_t BlockDraw(WeightAt weight_at, int32_t count, uint64_t seed, int64_t position,
                             DrawPurpose purpose) {
  Ranked best{-1.0F, INT32_MAX};  // keys are not negative
  const int32_t quads = CeilDiv(count, 4);
  for (int32_t quad = static_cast<int32_t>(threadIdx.x); quad < quads; quad += kThreads) {
    float weight[4];
    bool any = false;
    for (int32_t j = 0; j < 4; ++j) {
      const int32_t i = 4 * quad + j;
      weight[j] = i < count ? weight_at(i) : 0.0F;
      any = any || weight[j] > 0.0F;
    }
    if (!any) continue;
    const PhiloxBlock block = DrawBlock(seed, position, purpose, static_cast<uint32_t>(quad) + 1);
    for (int32_t j = 0; j < 4; ++j) {
      if (!(weight[j] > 0.0F)) continue;
      const Ranked entry{weight[j] / -logf(UniformFromWord(block.word[j])), 4 * quad + j};
      if (Before(entry, best)) best = entry;
    }
  }
  best = BlockFirst<kThreads>(best);
  return best.value < 0.0F ? -1 : best.index;
}

}  // namespace firesteel
