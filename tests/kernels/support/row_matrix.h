// An activation matrix for kernel tests, in fp32 or bf16 storage with a gap between rows.
//
// Everything starts as a NaN of a known bit pattern: rows that a test never sets poison whoever
// reads them, and a write outside the live rows and columns is visible afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/core/float_codec.h"
#include "kernels/core/tensor.h"
#include "tests/kernels/support/test_random.h"

namespace firesteel {

inline constexpr uint32_t kPoisonF32 = 0x7fc0deadU;
inline constexpr uint16_t kPoisonBf16 = 0x7fcdU;

class RowMatrix {
 public:
  RowMatrix(int32_t rows, int32_t cols, DType dtype = DType::kF32, int32_t gap = 5)
      : num_rows_(rows), cols_(cols), stride_(cols + gap), dtype_(dtype) {
    const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(stride_);
    if (dtype == DType::kF32) {
      f32_.assign(count, BitsFloat(kPoisonF32));
    } else {
      bf16_.assign(count, kPoisonBf16);
    }
  }

  void Set(int32_t row, int32_t col, float value) {
    if (dtype_ == DType::kF32) {
      f32_[At(row, col)] = value;
    } else {
      bf16_[At(row, col)] = FloatToBf16(value);
    }
  }
  float Get(int32_t row, int32_t col) const {
    return dtype_ == DType::kF32 ? f32_[At(row, col)] : Bf16ToFloat(bf16_[At(row, col)]);
  }
  void Randomize(TestRandom& random, int32_t live_rows, float low = -1.0F, float high = 1.0F) {
    for (int32_t r = 0; r < live_rows; ++r) {
      for (int32_t c = 0; c < cols_; ++c) Set(r, c, random.Uniform(low, high));
    }
  }
  void CopyRow(int32_t row, const RowMatrix& from, int32_t from_row) {
    for (int32_t c = 0; c < cols_; ++c) Set(row, c, from.Get(from_row, c));
  }

  // The stored bits of one row, for comparisons that must be exact.
  std::vector<uint32_t> RowBits(int32_t row) const {
    std::vector<uint32_t> bits;
    for (int32_t c = 0; c < cols_; ++c) bits.push_back(BitsAt(row, c));
    return bits;
  }
  // True when nothing was written at or past row `first`, nor into a gap column of any row.
  bool PoisonIntactFrom(int32_t first) const {
    const uint32_t poison = dtype_ == DType::kF32 ? kPoisonF32 : kPoisonBf16;
    for (int32_t r = 0; r < num_rows_; ++r) {
      for (int32_t c = r < first ? cols_ : 0; c < stride_; ++c) {
        if (BitsAt(r, c) != poison) return false;
      }
    }
    return true;
  }

  Rows rows() {
    if (dtype_ == DType::kF32) return {f32_.data(), stride_, dtype_};
    return {bf16_.data(), stride_, dtype_};
  }
  int32_t cols() const { return cols_; }

 private:
  size_t At(int32_t row, int32_t col) const {
    return static_cast<size_t>(row) * static_cast<size_t>(stride_) + static_cast<size_t>(col);
  }
  uint32_t BitsAt(int32_t row, int32_t col) const {
    return dtype_ == DType::kF32 ? FloatBits(f32_[At(row, col)]) : bf16_[At(row, col)];
  }

  int32_t num_rows_;
  int32_t cols_;
  int32_t stride_;
  DType dtype_;
  std::vector<float> f32_;
  std::vector<uint16_t> bf16_;
};

// A dense fp32 array that is poisoned in the same way.
inline std::vector<float> PoisonedFloats(int64_t count) {
  return std::vector<float>(static_cast<size_t>(count), BitsFloat(kPoisonF32));
}
inline bool IsPoison(float x) { return FloatBits(x) == kPoisonF32; }

inline std::vector<float> RandomFloats(TestRandom& random, int64_t count, float low, float high) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = random.Uniform(low, high);
  return values;
}
inline std::vector<uint16_t> RandomBf16(TestRandom& random, int64_t count, float low, float high) {
  std::vector<uint16_t> values(static_cast<size_t>(count));
  for (uint16_t& v : values) v = FloatToBf16(random.Uniform(low, high));
  return values;
}

}  // namespace firesteel
