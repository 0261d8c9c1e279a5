// y = w * x * rsqrt(mean(x^2) + eps), fp32 statistics.
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"

namespace firesteel {

class Stream;

struct RmsNormArgs {
  ConstRows x;             // [rows, cols]
  Rows y;                  // [rows, cols]; may alias x
  const uint16_t* weight;  // [cols] bf16
  LiveCount live;
  int32_t rows;
  int32_t cols;
  float eps;
};

void RmsNormCpu(Stream& stream, const RmsNormArgs& args);
void RmsNormCuda(Stream& stream, const RmsNormArgs& args);

}  // namespace firesteel
