// y = x W^T for weights kept in their checkpoint storage; decoded in the kernel, never expanded in memory.
//
// Value of W[o][k]:
//   F32, BF16   as stored
//   F8_E4M3     e4m3 * 2^(scale[o / block][k / block] - 127)        block x block tiles, ue8m0 scales
//   e2m1 x 2    e2m1 * 2^(scale[o][k / 32] - 127)                   low nibble is the even column, e8m0 scales
// Row results do not depend on how many rows are computed together: one accumulation order over k per (row, output).
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/tensor.h"

namespace firesteel {

class Stream;

struct Weight {
  const void* data = nullptr;  // [out, in], or [out, in / 2] bytes for e2m1 pairs
  const uint8_t* scale =
      nullptr;  // fp8: [ceil(out / block), ceil(in / block)]; fp4: [out, in / 32]; else null
  DType dtype = DType::kBf16;
  int32_t out = 0;
  int32_t in = 0;
  int32_t block = 0;  // fp8 only: rows and columns of one scale tile
};

// `groups` > 1 is the block-diagonal form: outputs [g * out / groups, (g + 1) * out / groups) read the input columns
// [g * in, (g + 1) * in), so x has groups * in columns.
struct LinearArgs {
  ConstRows x;  // [rows, groups * in]
  Rows y;       // [rows, out]
  Weight weight;
  LiveCount live;  // rows at or past *live are not touched
  int32_t rows;    // padded count
  int32_t groups;
};

void LinearCpu(Stream& stream, const LinearArgs& args);
void LinearCuda(Stream& stream, const LinearArgs& args);

}  // namespace firesteel
