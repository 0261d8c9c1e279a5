// Token rows to hidden rows, repeated into the residual streams.
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"

namespace firesteel {

class Stream;

struct EmbedArgs {
  const int32_t* token;   // [rows] ids in [0, vocab)
  const uint16_t* table;  // [vocab, hidden] bf16
  Rows out;               // [rows, streams * hidden]: `streams` copies, stream-major
  LiveCount live;
  int32_t rows;
  int32_t hidden;
  int32_t streams;
};

void EmbedCpu(Stream& stream, const EmbedArgs& args);
void EmbedCuda(Stream& stream, const EmbedArgs& args);

}  // namespace firesteel
