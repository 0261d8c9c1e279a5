// Reads and writes of activation rows that are stored as fp32 or bf16, for the CPU column.
#pragma once

#include <cstdint>

#include "kernels/core/float_codec.h"
#include "kernels/core/parallel_for.h"
#include "kernels/core/tensor.h"

namespace firesteel {

// Row `row` as fp32: the row itself when it is stored so, else decoded into `buffer` (at least `count` floats).
inline const float* ReadRow(const ConstRows& rows, int64_t row, int64_t count, float* buffer) {
  if (rows.dtype == DType::kF32) return static_cast<const float*>(rows.data) + row * rows.stride;
  const uint16_t* stored = static_cast<const uint16_t*>(rows.data) + row * rows.stride;
  for (int64_t i = 0; i < count; ++i) buffer[i] = Bf16ToFloat(stored[i]);
  return buffer;
}

// Where to write row `row` as fp32: the row itself, or `buffer`. FinishRow must follow.
inline float* WritableRow(const Rows& rows, int64_t row, float* buffer) {
  if (rows.dtype == DType::kF32) return static_cast<float*>(rows.data) + row * rows.stride;
  return buffer;
}

inline void FinishRow(const Rows& rows, int64_t row, int64_t count, const float* values) {
  if (rows.dtype == DType::kF32) return;
  uint16_t* stored = static_cast<uint16_t*>(rows.data) + row * rows.stride;
  for (int64_t i = 0; i < count; ++i) stored[i] = FloatToBf16(values[i]);
}

}  // namespace firesteel
