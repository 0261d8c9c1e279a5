// Four neighbouring values of an activation row in one load or store, as row_access.cuh reads and writes them one by one.
#pragma once

#include <cstdint>

#include "kernels/core/float_codec.h"
#include "kernels/core/tensor.h"

namespace firesteel {

// Four values as they are stored.
template <DType kStorage>
struct StoredQuad;
template <>
struct StoredQuad<DType::kF32> {
  using Type = float4;
};
template <>
struct StoredQuad<DType::kBf16> {
  using Type = uint2;
};

__device__ inline float4 QuadValues(const float4& stored) { return stored; }
__device__ inline float4 QuadValues(const uint2& stored) {
  return {BitsFloat(stored.x << 16), BitsFloat(stored.x & 0xffff0000U), BitsFloat(stored.y << 16),
          BitsFloat(stored.y & 0xffff0000U)};
}

// Whether all quads of [rows, cols] may be read with one load each.
inline bool HasQuads(const ConstRows& rows, int64_t cols) {
  const uintptr_t bytes = 4 * static_cast<uintptr_t>(DTypeBytes(rows.dtype));
  return cols % 4 == 0 && rows.stride % 4 == 0 &&
         reinterpret_cast<uintptr_t>(rows.data) % bytes == 0;
}

// Columns [col, col + 4), past the L1 cache: see early_launch.cuh. REQUIRES of all three: HasQuads(rows); col % 4 == 0; `kStorage` is the rows' type.
template <DType kStorage>
__device__ typename StoredQuad<kStorage>::Type LoadStoredQuad(const ConstRows& rows, int64_t row,
                                                              int64_t col) {
  using Quad = typename StoredQuad<kStorage>::Type;
  return __ldcg(static_cast<const Quad*>(rows.data) + (row * rows.stride + col) / 4);
}

__device__ inline float4 LoadQuad(const ConstRows& rows, int64_t row, int64_t col) {
  if (rows.dtype == DType::kF32) return LoadStoredQuad<DType::kF32>(rows, row, col);
  return QuadValues(LoadStoredQuad<DType::kBf16>(rows, row, col));
}

__device__ inline void StoreQuad(const Rows& rows, int64_t row, int64_t col, const float4& value) {
  const int64_t quad = (row * rows.stride + col) / 4;
  if (rows.dtype == DType::kF32) {
    static_cast<float4*>(rows.data)[quad] = value;
    return;
  }
  const auto pair = [](float low, float high) {
    return uint32_t{FloatToBf16(low)} | uint32_t{FloatToBf16(high)} << 16;
  };
  static_cast<uint2*>(rows.data)[quad] = {pair(value.x, value.y), pair(value.z, value.w)};
}

}  // namespace firesteel
