// Pieces of 16 consecutive columns of a weight row, read from checkpoint storage and turned into exact bf16 pairs.
//
// fp8 and fp4 values times their power-of-two scale, and bf16 values, are bf16 numbers; fp32 values need three parts.
// Every scale tile is a multiple of 16 columns, so a piece has one scale. NaN codes of fp8 are not checked for: they read as
// 480 times the scale.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/core/float_codec.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/ops/linear/linear.h"

namespace firesteel {

inline constexpr int kPieceColumns = 16;
inline constexpr int kPiecePairs = kPieceColumns / 2;

template <DType kStorage>
inline constexpr int kWeightParts = kStorage == DType::kF32 ? 3 : 1;

template <DType kStorage>
inline constexpr int kPieceBytes = kStorage == DType::kF4E2M1x2
                                       ? kPieceColumns / 2
                                       : kPieceColumns* DTypeBytes(kStorage);

// As stored. `scale` is the e8m0 byte, 127 (one) where the format has none.
template <DType kStorage>
struct RawPiece {
  uint32_t word[kPieceBytes<kStorage> / 4];
  uint32_t scale;
};

template <DType kStorage>
__device__ const uint8_t* WeightRow(const Weight& w, int64_t row) {
  const int64_t bytes =
      kStorage == DType::kF4E2M1x2 ? w.in / 2 : int64_t{w.in} * DTypeBytes(kStorage);
  return static_cast<const uint8_t*>(w.data) + row * bytes;
}

template <DType kStorage>
__device__ uint32_t PieceScale(const Weight& w, int64_t row, int32_t column) {
  if constexpr (kStorage == DType::kF8E4M3) {
    const int32_t tiles_in = (w.in + w.block - 1) / w.block;
    return w.scale[row / w.block * tiles_in + column / w.block];
  } else if constexpr (kStorage == DType::kF4E2M1x2) {
    return w.scale[row * (w.in / 32) + column / 32];
  } else {
    return 127;
  }
}

// Columns [column, column + 16) of a row; zeros past the end. REQUIRES: PiecesAligned.
template <DType kStorage>
__device__ RawPiece<kStorage> LoadPiece(const Weight& w, int64_t row, int32_t column) {
  RawPiece<kStorage> piece{};
  piece.scale = 127;
  if (column >= w.in) return piece;
  piece.scale = PieceScale<kStorage>(w, row, column);
  const uint8_t* source =
      WeightRow<kStorage>(w, row) + int64_t{column} * kPieceBytes<kStorage> / kPieceColumns;
  if constexpr (kPieceBytes<kStorage> == 8) {
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(source));
    piece.word[0] = v.x;
    piece.word[1] = v.y;
  } else {
#pragma unroll
    for (int i = 0; i < kPieceBytes<kStorage> / 16; ++i) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(source) + i);
      piece.word[4 * i] = v.x;
      piece.word[4 * i + 1] = v.y;
      piece.word[4 * i + 2] = v.z;
      piece.word[4 * i + 3] = v.w;
    }
  }
  return piece;
}

// Pair i holds columns 2i and 2i + 1 of the piece.
template <DType kStorage>
__device__ void DecodePiece(const RawPiece<kStorage>& raw,
                            uint32_t (&pair)[kPiecePairs][kWeightParts<kStorage>]) {
  if constexpr (kStorage == DType::kF32) {
#pragma unroll
    for (int i = 0; i < kPiecePairs; ++i) {
      SplitBf16(__uint_as_float(raw.word[2 * i]), __uint_as_float(raw.word[2 * i + 1]), pair[i]);
    }
  } else if constexpr (kStorage == DType::kBf16) {
#pragma unroll
    for (int i = 0; i < kPiecePairs; ++i) pair[i][0] = raw.word[i];
  } else if constexpr (kStorage == DType::kF8E4M3) {
    // Exponent and mantissa of e4m3 at the top of a bf16's leave a factor of 2^(127 - 7).
    constexpr uint32_t kOffset = 0x7b807b80U;  // 2^120 twice
    const uint32_t scale = E8M0Pair(raw.scale);
#pragma unroll
    for (int i = 0; i < kPiecePairs; ++i) {
      // Two codes to the upper bytes, the sign at its place.
      const uint32_t codes = __byte_perm(raw.word[i / 2], 0, i % 2 == 0 ? 0x1404 : 0x3424);
      const uint32_t bits = (codes & 0x80008000U) | ((codes >> 4) & 0x07f007f0U);
      pair[i][0] = ScalePair(bits, kOffset, scale);
    }
  } else {
    constexpr uint32_t kOffset = 0x7e807e80U;  // 2^126 twice
    const uint32_t scale = E8M0Pair(raw.scale);
#pragma unroll
    for (int i = 0; i < kPiecePairs; ++i) {
      const uint32_t codes = raw.word[i / 4] >> (8 * (i % 4));
      const uint32_t spread = (codes & 0x0fU) | ((codes & 0xf0U) << 12);
      const uint32_t bits = ((spread & 0x00080008U) << 12) | ((spread & 0x00070007U) << 6);
      pair[i][0] = ScalePair(bits, kOffset, scale);
    }
  }
}

}  // namespace firesteel
