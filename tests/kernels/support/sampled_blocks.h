// Verification of many one-shot sequences with fixed logits and proposals, for tests of what is emitted how often.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops/verify/sampling_math.h"
#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/verify_fixture.h"

namespace firesteel::sampled_blocks {

inline constexpr int32_t kVocab = 8;
inline constexpr int32_t kDrafts = 2;
inline constexpr int32_t kPerStep = 1000;
inline constexpr int32_t kSteps = 20;
inline constexpr float kTemperature = 0.8F;

inline size_t N(int64_t i) { return static_cast<size_t>(i); }

struct Counts {
  std::vector<int> token[kDrafts + 1] = {std::vector<int>(kVocab, 0), std::vector<int>(kVocab, 0),
                                         std::vector<int>(kVocab, 0)};
  int accepted_first = 0;
  int steps = 0;
};

// Many one-shot sequences with their own seeds: drafts are drawn from q, then verified against the
// logits.
inline Counts Sample(const std::vector<std::vector<float>>& logits,
                     const std::vector<std::vector<float>>& q, float top_p, bool draft) {
  OpFixture ops(2);
  Counts counts;
  for (int32_t step = 0; step < kSteps; ++step) {
    VerifyFixture f(kPerStep, kDrafts, kVocab);
    for (int32_t s = 0; s < kPerStep; ++s) {
      const uint64_t seed = static_cast<uint64_t>(step * kPerStep + s) * 7919;
      const int32_t start = 10 + s % 50;
      f.slots.sampling[N(s)].seed = seed;
      f.slots.sampling[N(s)].temperature = kTemperature;
      f.slots.sampling[N(s)].top_p = top_p;
      for (int32_t k = 0; draft && k < kDrafts; ++k) {
        f.SetDraft(s, k,
                   DrawIndex(q[N(k)].data(), kVocab, seed, start + k + 1, DrawPurpose::kDraft),
                   q[N(k)]);
      }
      if (draft) {
        f.AddDecode(s, start, logits, kDrafts);
      } else {
        f.AddDecode(s, start, {logits[0]}, 0);
      }
    }
    f.Run(ops);
    for (int32_t s = 0; s < kPerStep; ++s) {
      const std::vector<int32_t> tokens = f.Tokens(s);
      for (size_t i = 0; i < tokens.size(); ++i) ++counts.token[i][N(tokens[i])];
      counts.accepted_first += f.results[N(s)].accepted > 0 ? 1 : 0;
      ++counts.steps;
    }
  }
  return counts;
}

inline const std::vector<std::vector<float>>& Logits() {
  static const std::vector<std::vector<float>> kLogits = {
      {0.5F, -1.0F, 1.2F, 0.0F, 0.3F, -0.4F, 0.9F, -2.0F},
      {-0.5F, 1.0F, 0.2F, 0.7F, -1.3F, 0.4F, 0.0F, 0.6F},
      {1.5F, 0.0F, -0.2F, 0.1F, 0.3F, -0.7F, 0.8F, 0.2F}};
  return kLogits;
}

// Quite different from the targets; token 6 is never proposed in the first place although the
// target likes it.
inline const std::vector<std::vector<float>>& Proposals() {
  static const std::vector<std::vector<float>> kProposals = {
      {0.05F, 0.3F, 0.1F, 0.2F, 0.1F, 0.15F, 0.0F, 0.1F},
      {0.2F, 0.05F, 0.25F, 0.05F, 0.3F, 0.05F, 0.05F, 0.05F}};
  return kProposals;
}

}  // namespace firesteel::sampled_blocks
