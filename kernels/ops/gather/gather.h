// Copies selected rows into a dense matrix: the rows that reach the LM head.
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"

namespace firesteel {

class Stream;

struct GatherArgs {
  ConstRows x;           // [*, cols]
  const int32_t* index;  // [rows] source rows
  Rows out;              // [rows, cols], same dtype as x
  LiveCount live;
  int32_t rows;
  int32_t cols;
};

void GatherCpu(Stream& stream, const GatherArgs& args);
void GatherCuda(Stream& stream, const GatherArgs& args);

}  // namespace firesteel
