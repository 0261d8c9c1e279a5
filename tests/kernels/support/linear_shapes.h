// Weights that every test of the matrix products walks through.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/dtype.h"

namespace firesteel {

struct LinearShape {
  DType dtype;
  int32_t out;
  int32_t in;
  int32_t block;
};

// Odd sizes, sizes below one vector, tiles that end inside a scale block, and sizes that several
// workers share.
inline const std::vector<LinearShape>& LinearShapes() {
  static const std::vector<LinearShape> kShapes = {
      {DType::kF32, 1, 1, 0},          {DType::kF32, 3, 7, 0},
      {DType::kF32, 5, 33, 0},         {DType::kF32, 130, 100, 0},
      {DType::kBf16, 1, 1, 0},         {DType::kBf16, 4, 31, 0},
      {DType::kBf16, 37, 65, 0},       {DType::kBf16, 150, 224, 0},
      {DType::kF8E4M3, 1, 32, 32},     {DType::kF8E4M3, 33, 96, 32},
      {DType::kF8E4M3, 70, 64, 32},    {DType::kF8E4M3, 5, 128, 128},
      {DType::kF8E4M3, 130, 160, 128}, {DType::kF8E4M3, 200, 256, 128},
      {DType::kF4E2M1x2, 1, 32, 0},    {DType::kF4E2M1x2, 6, 96, 0},
      {DType::kF4E2M1x2, 150, 256, 0},
  };
  return kShapes;
}

}  // namespace firesteel
