// Decides what each sequence emits: accepts drafts, draws the next token, and advances the slot tables.
//
// Row i of a sequence judges draft i + 1. Greedy (temperature 0): accept while the draft is the target's first best
// token; the first differing token, or the last row's, is emitted. Sampled: accept a draft d with probability
// min(1, p(d) / q(d)), where q is the distribution it was drawn from; at the first rejection draw from
// max(p - q, 0) normalised; after the last row draw from p (Leviathan et al., "Fast inference from transformers via
// speculative decoding", ICML 2023, algorithm 1). p is the target's distribution after the slot's sampling rules
// (target_distribution.h); q needs none of them. Emitted tokens are counted one by one, so a row's penalties know the
// drafts that were accepted before it in the same block. Every draw is keyed by (seed, absolute position, purpose).
//
// A scored prompt chunk has a logit row per row. Those before the judged ones only get a LogprobRecord of the known
// token that follows; when next_token is known too, nothing is judged.
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"
#include "kernels/ops/step_meta.h"

namespace firesteel {

class Stream;
struct LogprobRecord;
struct SequenceResult;

struct VerifyArgs {
  const float* logits;  // [logit_rows, vocab]
  SequenceMeta sequences;
  const int32_t* row_token;  // [rows]
  SlotTables slots;          // length, last_token and output_count are advanced
  SequenceResult* results;   // [sequences]
  LogprobRecord* logprobs;   // [logit_rows]
  LiveCount live_sequences;
  int32_t padded_sequences;
  // [padded_sequences, vocab] a distribution per sequence, for the CUDA column. The CPU column has its workers' scratch
  // and reads nothing here.
  float* scratch;
};

void VerifyCpu(Stream& stream, const VerifyArgs& args);
void VerifyCuda(Stream& stream, const VerifyArgs& args);

}  // namespace firesteel
