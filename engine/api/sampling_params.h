// How one request picks its tokens. Validated once, immutable afterwards. Every option holds exactly under speculation:
// the emitted tokens follow the target's distribution after all of them, whatever the drafter proposes.
//
// Order per token: bad words and the stop tokens below min_tokens are forbidden; logit_bias; repetition, then frequency
// and presence penalties; temperature; min_p; top_k; top_p.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/core/status.h"

namespace firesteel {

// Dividing logits by less than this could overflow, and the result would be the greedy token anyway.
inline constexpr float kGreedyTemperature = 1e-5F;

// Token sequences of `bad_words` that a request may have.
inline constexpr size_t kMaxRequestBadWords = 64;

struct SamplingParams {
  float temperature =
      1.0F;  // below kGreedyTemperature means greedy: the first index of the largest logit
  float top_p = 1.0F;  // nucleus mass kept of what min_p and top_k leave, (0, 1]
  int32_t top_k = 0;   // most likely tokens kept; 0: all
  float min_p = 0.0F;  // tokens kept have at least this share of the best one's probability, 0..1
  uint64_t seed = 0;   // Philox key; the engine never draws a seed of its own
  int32_t max_tokens = 16;  // output tokens, end token included, at least 1
  int32_t min_tokens = 0;   // stop tokens are forbidden before this many output tokens
  bool ignore_eos = false;

  float presence_penalty = 0.0F;   // -2..2, once for a token that is in the output
  float frequency_penalty = 0.0F;  // -2..2, for each time a token is in the output
  float repetition_penalty =
      1.0F;  // > 0, divides positive logits of tokens in prompt or output; 1: off
  std::map<int32_t, float> logit_bias;  // at most 300 tokens, -100..100
  std::vector<std::vector<int32_t>>
      bad_words;  // the last token of one is forbidden behind the others

  // Raw log-probabilities: those of the model, before all of the above.
  int32_t logprobs =
      -1;  // most likely tokens reported with each output token, 0..20; -1: no log-probabilities
  int32_t prompt_logprobs = -1;  // the same for each prompt token but the first

  bool greedy() const { return temperature < kGreedyTemperature; }

  // InvalidArgument names the field, the value found and the values allowed.
  Status Validate() const;

  bool HasPenalties() const {
    return presence_penalty != 0.0F || frequency_penalty != 0.0F || repetition_penalty != 1.0F;
  }
  // Whether each row of the prompt must be run, so that cached prefixes cannot be used: token counts, the tail that bad
  // words are matched with, and prompt log-probabilities are made where rows run.
  bool NeedsEveryRow() const;
};

}  // namespace firesteel
