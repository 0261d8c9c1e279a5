// The drafter's sequential head: each proposal biases the next one through a low-rank table.
//
//   L_k = U_k + W2 W1[x_{k-1}],   x_k = argmax L_k (temperature 0) or a draw from softmax(L_k / T)
// kept in fp32. The distribution drawn from is stored for the verifier. The confidence head reads the pre-norm hidden row
// and the embedding of the predecessor: logit_k = w . [h_k ; W1[x_{k-1}]].
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"
#include "kernels/ops/draft_prepare/draft_prepare.h"
#include "kernels/ops/linear/linear.h"

namespace firesteel {

class Stream;

struct MarkovStepArgs {
  const float* base;   // [draft rows, vocab] U
  const uint16_t* w1;  // [vocab, rank] bf16
  Weight w2;           // [vocab, rank]
  float* logits;       // [sequences, vocab] scratch
  SlotTables slots;    // draft_tokens and draft_probs column `step` are written
  DraftMeta draft;     // chain column step + 1 is written
  LiveCount live_sequences;
  int32_t padded_sequences;
  int32_t block;
  int32_t step;  // 0-based k
};

struct ConfidenceArgs {
  ConstRows hidden;        // [draft rows, hidden] pre-norm
  const uint16_t* w1;      // [vocab, rank]
  const uint16_t* weight;  // [hidden + rank]
  DraftMeta draft;
  float* logit;  // [sequences, steps]
  LiveCount live_sequences;
  int32_t padded_sequences;
  int32_t hidden_size;
  int32_t rank;
  int32_t block;
  int32_t steps;
};

void MarkovStepCpu(Stream& stream, const MarkovStepArgs& args);
void MarkovStepCuda(Stream& stream, const MarkovStepArgs& args);
void ConfidenceCpu(Stream& stream, const ConfidenceArgs& args);
void ConfidenceCuda(Stream& stream, const ConfidenceArgs& args);

}  // namespace firesteel
