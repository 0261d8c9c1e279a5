// Puts a slot of a VerifyFixture into the state that a request with sampling rules has after its prompt and some output.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/kernels/support/sampling_oracle.h"
#include "tests/kernels/support/verify_fixture.h"

namespace firesteel {

inline void SetRules(VerifyFixture* f, int32_t slot, const OracleRules& r,
                     const std::vector<int32_t>& prompt, const std::vector<int32_t>& output) {
  SlotSampling& s = f->slots.sampling[static_cast<size_t>(slot)];
  s.temperature = static_cast<float>(r.temperature);
  s.top_p = static_cast<float>(r.top_p);
  s.top_k = r.top_k;
  s.min_p = static_cast<float>(r.min_p);
  s.presence_penalty = static_cast<float>(r.presence);
  s.frequency_penalty = static_cast<float>(r.frequency);
  s.repetition_penalty = static_cast<float>(r.repetition);
  s.prompt_length = static_cast<int32_t>(prompt.size());
  s.min_tokens = r.min_tokens;
  SamplingRules& rules = f->slots.rules[static_cast<size_t>(slot)];
  for (const auto& [token, bias] : r.bias) {
    rules.bias_token[s.num_bias] = token;
    rules.bias[s.num_bias++] = bias;
  }
  int32_t end = 0;
  for (const std::vector<int32_t>& word : r.bad_words) {
    for (const int32_t t : word) rules.bad_token[end++] = t;
    rules.bad_end[s.num_bad_words++] = end;
  }
  for (const int32_t t : r.stops) rules.stop[s.num_stops++] = t;
  if (s.counts_tokens()) {
    f->slots.ClearCounts(slot);
    for (const int32_t t : prompt) f->slots.PromptSeen(slot, t) = 1;
    for (const int32_t t : output) ++f->slots.OutputCount(slot, t);
  }
  std::vector<int32_t> known = prompt;
  known.insert(known.end(), output.begin(), output.end());
  for (size_t p = 0; p < known.size(); ++p) {
    f->slots.recent_tokens[static_cast<size_t>(slot) * kRecentTokens + p % kRecentTokens] =
        known[p];
  }
}

// What step_prepare leaves of a verify block's rows: the drafts behind the known tokens.
inline void SetRuledDraft(VerifyFixture* f, int32_t slot, int32_t known, int32_t column,
                          int32_t token, const std::vector<float>& q) {
  f->SetDraft(slot, column, token, q);
  f->slots.recent_tokens[static_cast<size_t>(slot) * kRecentTokens +
                         static_cast<size_t>((known + column) % kRecentTokens)] = token;
}

}  // namespace firesteel
