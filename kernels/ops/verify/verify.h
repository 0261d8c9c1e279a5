// Decides what each sequence emits: accepts drafts, draws the next token, and advances the slot tables.
//
// Row i of a sequence judges draft i + 1. Greedy (temperature 0): accept while the draft is the target's first best
// token; the first differing token, or the last row's, is emitted. Sampled: accept a draft d with probability
// min(1, p(d) / q(d)), where q is the distribution it was drawn from; at the first rejection draw from
// max(p - q, 0) normalised; after the last row draw from p (Leviathan et al., "Fast inference from transformers via
// speculative decoding", ICML 2023, algorithm 1). p is the target's distribution after temperature and top-p.
// Every draw is keyed by (seed, absolute position, purpose).
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"
#include "kernels/ops/step_meta.h"

namespace firesteel {

class Stream;
struct SequenceResult;

struct VerifyArgs {
  const float* logits;      // [logit_rows, vocab]
  SequenceMeta sequences;
  SlotTables slots;         // length and last_token are advanced
  SequenceResult* results;  // [sequences]
  LiveCount live_sequences;
  int32_t padded_sequences;
};

void VerifyCpu(Stream& stream, const VerifyArgs& args);

}  // namespace firesteel
