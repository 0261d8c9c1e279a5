// What a step hands back for each planned sequence; written by the verify kernel, read by the scheduler.
#pragma once

#include <cstdint>
#include <type_traits>

namespace firesteel {

inline constexpr int32_t kMaxDraftLength =
    15;                                      // K; a verify step has at most K + 1 rows per sequence
inline constexpr int32_t kMaxLogprobs = 20;  // top entries of one position

// One record per planned sequence, in plan order. Filled on the device, copied out once per step.
struct SequenceResult {
  int32_t slot;        // -1 in a padding record
  int32_t num_tokens;  // accepted drafts + 1; 0 for a prefill chunk that is not the last
  int32_t accepted;    // drafts accepted by the verifier (before EOS, stop or length truncation)
  int32_t drafted;     // drafts that were verified
  int32_t tokens[kMaxDraftLength + 1];  // the first num_tokens are valid, oldest first
  int32_t not_finite;  // 1: a judged logit row held NaN or infinity; nothing was emitted
};
static_assert(std::is_trivially_copyable_v<SequenceResult>);

// One record per logit row, written only for sequences that asked. Logarithms of the softmax of the raw logits: before
// any rule, penalty or temperature.
struct LogprobRecord {
  int32_t token;    // emitted by this row, or the known next token of a prompt row
  float logprob;    // of `token`
  int32_t rank;     // 1: no token has a larger logit
  int32_t num_top;  // entries below that are valid: best first, ties to the lower token
  int32_t top_token[kMaxLogprobs];
  float top_logprob[kMaxLogprobs];
};
static_assert(std::is_trivially_copyable_v<LogprobRecord>);

}  // namespace firesteel
