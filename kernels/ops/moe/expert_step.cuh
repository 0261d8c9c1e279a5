// A step of an expert product: 16 outputs times 256 columns of fp4 weights, decoded and multiplied with rows in shared memory.
#pragma once

#include "kernels/cuda/mma.cuh"

namespace firesteel {

inline constexpr int kStreamSlice = 256;  // columns of a step

// A step in shared memory: 16 rows of weights, then their scales. Unit u of row r is kept at u ^ 4 (r mod 2), against bank
// conflicts.
inline constexpr int kStepRowBytes = kStreamSlice / 2;
inline constexpr int kStepScales = 16 * kStepRowBytes;
inline constexpr int kStepBytes = kStepScales + 16 * (kStreamSlice / 32);

// A lane's part of a step: rows g and g + 8 of the tile, 32 columns of each half, and the rows' eight scales.
struct StreamStep {
  uint4 low[2];
  uint4 high[2];
  uint2 low_scale;
  uint2 high_scale;
};

// Eight codes to four pairs of bf16 bits that lack a factor of 2^126: (0, 4), (1, 5), (2, 6), (3, 7). One product puts the sign
// and the other three bits of both codes in their places.
__device__ inline void SpreadFp4(uint32_t word, uint32_t (&pair)[4]) {
  constexpr uint32_t kKept = 0x81c081c0U;
  const uint32_t upper = word >> 8;
  pair[0] = ((word & 0x000f000fU) * 0x1040U) & kKept;
  pair[1] = ((word & 0x00f000f0U) * 0x0104U) & kKept;
  pair[2] = ((upper & 0x000f000fU) * 0x1040U) & kKept;
  pair[3] = ((upper & 0x00f000f0U) * 0x0104U) & kKept;
}

__device__ inline uint32_t TimesPair(uint32_t pair, uint32_t factor) {
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(pair), "r"(factor));
  return out;
}

// The scale of each half for a lane's two rows: the byte of its quarter in the upper byte of both halves of a register.
struct StepScales {
  uint32_t low[2];
  uint32_t high[2];

  static __device__ uint32_t Selector() {
    const uint32_t quarter = threadIdx.x % 4;
    return quarter << 12 | quarter << 4 | 0x0404U;
  }
  static __device__ StepScales Of(const StreamStep& step, uint32_t selector) {
    StepScales s;
    s.low[0] = __byte_perm(step.low_scale.x, 0, selector);
    s.low[1] = __byte_perm(step.low_scale.y, 0, selector);
    s.high[0] = __byte_perm(step.high_scale.x, 0, selector);
    s.high[1] = __byte_perm(step.high_scale.y, 0, selector);
    return s;
  }

  // Whether 2^(byte - 1), which a code's bits are to be multiplied by, is a bf16 number for each of them.
  __device__ bool AreSmall() const {
    constexpr uint32_t kMost = 128U << 24 | 128U << 8;
    return max(max(low[0], low[1]), max(high[0], high[1])) <= kMost;
  }
  static __device__ uint32_t Small(uint32_t scale) { return (scale >> 1) + 0x3f003f00U; }
  static __device__ uint32_t Any(uint32_t scale) { return E8M0Pair(scale >> 24); }
};

// acc += step times the rows at x, which points at this lane's first unit. kSmall: the scales are small, so that each and the
// factor of 2^126 are one bf16 number; the products are exact either way.
template <int kRowTiles, bool kSmall, int kMostTiles>
__device__ void MultiplyStep(const StreamStep& step, const StepScales& scales, const std::byte* x,
                             int32_t tile_bytes, float (&acc)[kMostTiles][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t low_factor =
        kSmall ? StepScales::Small(scales.low[half]) : StepScales::Any(scales.low[half]);
    const uint32_t high_factor =
        kSmall ? StepScales::Small(scales.high[half]) : StepScales::Any(scales.high[half]);
    const uint32_t low_words[4] = {step.low[half].x, step.low[half].y, step.low[half].z,
                                   step.low[half].w};
    const uint32_t high_words[4] = {step.high[half].x, step.high[half].y, step.high[half].z,
                                    step.high[half].w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t low[4];
      uint32_t high[4];
      SpreadFp4(low_words[i], low);
      SpreadFp4(high_words[i], high);
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        if constexpr (kSmall) {
          low[p] = TimesPair(low[p], low_factor);
          high[p] = TimesPair(high[p], high_factor);
        } else {
          constexpr uint32_t kOffset = 0x7e807e80U;  // 2^126 twice
          low[p] = ScalePair(low[p], kOffset, low_factor);
          high[p] = ScalePair(high[p], kOffset, high_factor);
        }
      }
      const uint32_t first[4] = {low[0], high[0], low[1], high[1]};
      const uint32_t second[4] = {low[2], high[2], low[3], high[3]};
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
        const uint4 b = *reinterpret_cast<const uint4*>(x + n * tile_bytes + (half * 4 + i) * 64);
        MmaBf16(acc[n], first, b.x, b.y);
        MmaBf16(acc[n], second, b.z, b.w);
      }
    }
  }
}

template <int kRowTiles, int kMostTiles>
__device__ void MultiplyAnyStep(const StreamStep& step, uint32_t selector, const std::byte* x,
                                int32_t tile_bytes, float (&acc)[kMostTiles][4]) {
  const StepScales scales = StepScales::Of(step, selector);
  if (__all_sync(0xffffffffU, scales.AreSmall())) {
    MultiplyStep<kRowTiles, true>(step, scales, x, tile_bytes, acc);
  } else {
    MultiplyStep<kRowTiles, false>(step, scales, x, tile_bytes, acc);
  }
}

// A lane's part of a step that has arrived.
__device__ inline StreamStep ReadStep(const std::byte* step) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::byte* row = step + lane / 4 * kStepRowBytes + lane % 4 * 16;
  const int odd = lane / 4 % 2 * 64;
  const std::byte* scale = step + kStepScales + lane / 4 * 8;
  StreamStep s;
  s.low[0] = *reinterpret_cast<const uint4*>(row + odd);
  s.low[1] = *reinterpret_cast<const uint4*>(row + (odd ^ 64));
  s.high[0] = *reinterpret_cast<const uint4*>(row + 8 * kStepRowBytes + odd);
  s.high[1] = *reinterpret_cast<const uint4*>(row + 8 * kStepRowBytes + (odd ^ 64));
  s.low_scale = *reinterpret_cast<const uint2*>(scale);
  s.high_scale = *reinterpret_cast<const uint2*>(scale + 64);
  return s;
}

}  // namespace firesteel
