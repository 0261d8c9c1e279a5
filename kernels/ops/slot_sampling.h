// How the sequence of a slot picks its tokens: what the host uploads once per slot and the sampling kernels read.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/core/math.h"

namespace firesteel {

inline constexpr int32_t kMaxLogitBias = 300;
inline constexpr int32_t kMaxBadWords = 64;
inline constexpr int32_t kMaxBadWordTokens = 256;  // of all bad words of one request
inline constexpr int32_t kMaxBadWordLength = 32;
inline constexpr int32_t kMaxMaskedStops = 64;
// Newest known tokens kept per slot, by position modulo this. Rows of a verify block are written before the first of
// them is judged, so this must hold a block besides the longest bad word.
inline constexpr int32_t kRecentTokens = 64;

// The defaults are a greedy request without rules.
struct SlotSampling {
  uint64_t seed = 0;
  float temperature = 0.0F;  // 0 is greedy
  float top_p = 1.0F;
  float min_p = 0.0F;  // 0: off
  int32_t top_k = 0;   // 0: off
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  float repetition_penalty = 1.0F;
  int32_t logprobs = -1;         // top entries per emitted token; -1: no log-probabilities at all
  int32_t prompt_logprobs = -1;  // the same for prompt tokens
  int32_t prompt_length = 0;
  int32_t min_tokens = 0;  // stop tokens are masked before this many output tokens
  // Live entries of the slot's SamplingRules.
  int32_t num_bias = 0;
  int32_t num_bad_words = 0;
  int32_t num_stops = 0;
  int32_t reserved = 0;

  FIRESTEEL_HOST_DEVICE bool counts_tokens() const {
    return presence_penalty != 0.0F || frequency_penalty != 0.0F || repetition_penalty != 1.0F;
  }
  FIRESTEEL_HOST_DEVICE bool has_tables() const {
    return num_bias > 0 || num_bad_words > 0 || num_stops > 0;
  }
  // Whether logits are changed before the temperature.
  FIRESTEEL_HOST_DEVICE bool has_rules() const { return counts_tokens() || has_tables(); }
};
static_assert(std::is_trivially_copyable_v<SlotSampling>);

// The part of a request's sampling that varies in size. Bad word i is bad_token[bad_end[i - 1] .. bad_end[i]).
struct SamplingRules {
  int32_t bias_token[kMaxLogitBias];
  float bias[kMaxLogitBias];
  int32_t bad_end[kMaxBadWords];
  int32_t bad_token[kMaxBadWordTokens];
  int32_t stop[kMaxMaskedStops];
};
static_assert(std::is_trivially_copyable_v<SamplingRules>);

}  // namespace firesteel
