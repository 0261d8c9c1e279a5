// The drafter's view of the target: the mean of the residual streams of one layer, written into its column range.
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"

namespace firesteel {

class Stream;

struct FeatureTapArgs {
  ConstRows x;  // [rows, streams * hidden]
  Rows out;     // [rows, hidden] view into the feature matrix (its stride is taps * hidden)
  LiveCount live;
  int32_t rows;
  int32_t hidden;
  int32_t streams;
};

void FeatureTapCpu(Stream& stream, const FeatureTapArgs& args);
void FeatureTapCuda(Stream& stream, const FeatureTapArgs& args);

}  // namespace firesteel
