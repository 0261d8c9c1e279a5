// Views of activation matrices as kernels see them: a pointer, a row stride and a storage type.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/math.h"

namespace firesteel {

// [rows, cols] values in fp32 or bf16; `stride` elements from one row to the next. The row and column counts belong to
// the op's arguments.
struct Rows {
  void* data = nullptr;
  int64_t stride = 0;
  DType dtype = DType::kF32;
};

struct ConstRows {
  const void* data = nullptr;
  int64_t stride = 0;
  DType dtype = DType::kF32;

  ConstRows() = default;
  FIRESTEEL_HOST_DEVICE ConstRows(const void* data_in, int64_t stride_in, DType dtype_in)
      : data(data_in), stride(stride_in), dtype(dtype_in) {}
  // NOLINTNEXTLINE(google-explicit-constructor): a mutable view is a view
  FIRESTEEL_HOST_DEVICE ConstRows(const Rows& rows)
      : data(rows.data), stride(rows.stride), dtype(rows.dtype) {}
};

// How many of a padded count are live this step; written by step_prepare, read by every kernel.
using LiveCount = const int32_t*;  // [1] device memory

}  // namespace firesteel
