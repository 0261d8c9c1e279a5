// Reads and writes of activation rows that are stored as fp32 or bf16, for the CUDA column.
#pragma once

#include "kernels/core/float_codec.h"
#include "kernels/core/tensor.h"

namespace firesteel {

// Element `col` of row `row`, as fp32.
__device__ inline float LoadElement(const ConstRows& rows, int64_t row, int64_t col) {
  const int64_t at = row * rows.stride + col;
  if (rows.dtype == DType::kF32) return static_cast<const float*>(rows.data)[at];
  return Bf16ToFloat(static_cast<const uint16_t*>(rows.data)[at]);
}

// The same past the L1 cache, as kernels that may start early must read what others wrote (early_launch.cuh).
__device__ inline float LoadFreshElement(const ConstRows& rows, int64_t row, int64_t col) {
  const int64_t at = row * rows.stride + col;
  if (rows.dtype == DType::kF32) return __ldcg(static_cast<const float*>(rows.data) + at);
  return Bf16ToFloat(__ldcg(static_cast<const uint16_t*>(rows.data) + at));
}

__device__ inline void StoreElement(const Rows& rows, int64_t row, int64_t col, float value) {
  const int64_t at = row * rows.stride + col;
  if (rows.dtype == DType::kF32) {
    static_cast<float*>(rows.data)[at] = value;
  } else {
    static_cast<uint16_t*>(rows.data)[at] = FloatToBf16(value);
  }
}

}  // namespace firesteel
