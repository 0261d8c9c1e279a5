// Host definition of what the target samples from: the rules of a slot applied to one row of logits.
//
// Order: bad words and the stop tokens below min_tokens are masked; logit bias is added; repetition, then frequency
// and presence penalties are taken; temperature; softmax; min-p; top-k; top-p. Each cut works on what the cut before it left,
// so top-p is a share of the mass that survived min-p and top-k. Ties go to the lower token.
#pragma once

#include <cstdint>

#include "kernels/ops/step_meta.h"
#include "kernels/ops/verify/sequence_result.h"

namespace firesteel {

struct RowScratch {
  float* p;         // [vocab]
  float* residual;  // [vocab]
  int32_t* order;   // [vocab]
};

// ruled = logits after every rule that precedes the temperature. `position` is the row's own: the token it predicts
// comes behind it. REQUIRES: the slot's recent tokens reach up to `position`.
void ApplyRules(const SlotTables& slots, int32_t slot, int32_t position, const float* logits,
                float* ruled);

// s.p = the distribution of the ruled logits. `ruled` may be s.p; s.order is overwritten.
void TargetDistribution(const SlotSampling& sampling, const float* ruled, int32_t vocab,
                        const RowScratch& s);

// Raw log-probabilities of `token` and of the `num_top` best ones. `scratch` has room for a row.
void RecordLogprobs(const float* logits, int32_t vocab, int32_t token, int32_t num_top,
                    float* scratch, LogprobRecord* record);

}  // namespace firesteel
