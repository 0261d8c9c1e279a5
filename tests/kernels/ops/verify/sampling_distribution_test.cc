// Chi-square at fixed seeds: with every sampling option, alone and combined, emitted tokens follow the target's
// distribution after the rules, with drafts from q and without, for the first token and for the next one given the first.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/ops/verify/sampling_math.h"
#include "tests/kernels/support/ruled_slot.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kVocab = 12;
constexpr int32_t kPerStep = 4000;
constexpr int32_t kSteps = 5;

const std::vector<int32_t> kPrompt = {1, 4, 4, 7, 2};
const std::vector<int32_t> kOutput = {3, 6, 3, 8};

struct NamedRules {
  std::string name;
  OracleRules rules;
};

std::vector<NamedRules> AllRules() {
  std::vector<NamedRules> all;
  const auto add = [&](const std::string& name, auto change) {
    OracleRules rules;
    rules.temperature = 0.9;
    change(rules);
    all.push_back({name, rules});
  };
  const auto presence = [](OracleRules& r) { r.presence = 0.8; };
  const auto frequency = [](OracleRules& r) { r.frequency = 0.5; };
  const auto repetition = [](OracleRules& r) { r.repetition = 1.6; };
  const auto bias = [](OracleRules& r) { r.bias = {{0, 1.5F}, {5, -1.0F}, {11, 0.75F}}; };
  const auto bad_words = [](OracleRules& r) { r.bad_words = {{9}, {8, 5}, {2, 6}, {5, 6}}; };
  const auto min_tokens = [](OracleRules& r) {
    r.stops = {10, 0};
    r.min_tokens = 5;
  };
  const auto top_k = [](OracleRules& r) { r.top_k = 5; };
  const auto min_p = [](OracleRules& r) { r.min_p = 0.22; };
  const auto top_p = [](OracleRules& r) { r.top_p = 0.72; };
  add("temperature", [](OracleRules& r) { r.temperature = 1.4; });
  add("presence_penalty", presence);
  add("frequency_penalty", frequency);
  add("repetition_penalty", repetition);
  add("logit_bias", bias);
  add("bad_words", bad_words);
  add("min_tokens", min_tokens);
  add("top_k", top_k);
  add("min_p", min_p);
  add("top_p", top_p);
  add("cuts", [&](OracleRules& r) {
    top_k(r), top_p(r);
    r.min_p = 0.1;
  });
  add("penalties", [&](OracleRules& r) { presence(r), frequency(r), repetition(r); });
  add("all", [&](OracleRules& r) {
    presence(r), frequency(r), repetition(r), bias(r), bad_words(r), min_tokens(r), top_p(r);
    r.top_k = 6;
    r.min_p = 0.05;
  });
  return all;
}

const std::vector<std::vector<float>>& Logits() {
  static const std::vector<std::vector<float>> kLogits = {
      {0.5F, -1.0F, 1.2F, 0.1F, 0.3F, -0.4F, 0.9F, -2.0F, 0.7F, 0.65F, 0.2F, -0.6F},
      {-0.5F, 1.0F, 0.2F, 0.7F, -1.3F, 0.4F, 0.05F, 0.6F, 0.35F, 0.8F, 1.1F, -0.2F}};
  return kLogits;
}

// Unlike the targets; it likes tokens that some rules forbid.
std::vector<float> Proposal() {
  return {0.05F, 0.05F, 0.1F, 0.2F, 0.02F, 0.1F, 0.08F, 0.0F, 0.1F, 0.15F, 0.1F, 0.05F};
}

struct Counts {
  std::vector<int> first = std::vector<int>(kVocab, 0);
  // [first token][second token] of blocks whose first draft was accepted
  std::vector<std::vector<int>> second =
      std::vector<std::vector<int>>(kVocab, std::vector<int>(kVocab, 0));
};

Counts Sample(const OracleRules& rules, bool draft, uint64_t salt) {
  OpFixture ops(2);
  Counts counts;
  const std::vector<float> q = Proposal();
  const auto known = static_cast<int32_t>(kPrompt.size() + kOutput.size());
  for (int32_t step = 0; step < kSteps; ++step) {
    VerifyFixture f(kPerStep, 1, kVocab);
    for (int32_t s = 0; s < kPerStep; ++s) {
      const uint64_t seed = (static_cast<uint64_t>(step * kPerStep + s) + salt * 1000003) * 7919;
      SetRules(&f, s, rules, kPrompt, kOutput);
      f.slots.sampling[static_cast<size_t>(s)].seed = seed;
      if (draft) {
        SetRuledDraft(&f, s, known, 0,
                      DrawIndex(q.data(), kVocab, seed, known, DrawPurpose::kDraft), q);
        f.AddDecode(s, known - 1, Logits(), 1);
      } else {
        f.AddDecode(s, known - 1, {Logits()[0]}, 0);
      }
    }
    f.Run(ops);
    for (int32_t s = 0; s < kPerStep; ++s) {
      const std::vector<int32_t> tokens = f.Tokens(s);
      const auto first = static_cast<size_t>(tokens[0]);
      ++counts.first[first];
      if (tokens.size() > 1) ++counts.second[first][static_cast<size_t>(tokens[1])];
    }
  }
  return counts;
}

// Pearson's statistic as standard deviations above its mean (Wilson and Hilferty's cube root). Tokens with an expected
// count below 5 are pooled. A token that cannot occur must not.
double Deviation(const std::vector<int>& counts, const std::vector<double>& p) {
  double total = 0.0;
  for (const int c : counts) total += c;
  double statistic = 0.0;
  double rare_found = 0.0;
  double rare_expected = 0.0;
  int cells = 0;
  for (size_t t = 0; t < p.size(); ++t) {
    if (p[t] == 0.0) {
      CHECK(counts[t] == 0);
      continue;
    }
    const double expected = total * p[t];
    if (expected < 5.0) {
      rare_found += counts[t];
      rare_expected += expected;
      continue;
    }
    statistic += (counts[t] - expected) * (counts[t] - expected) / expected;
    ++cells;
  }
  if (rare_expected >= 1.0) {
    statistic += (rare_found - rare_expected) * (rare_found - rare_expected) / rare_expected;
    ++cells;
  }
  if (cells < 2) return 0.0;
  const double k = cells - 1;
  return (std::cbrt(statistic / k) - (1.0 - 2.0 / (9.0 * k))) / std::sqrt(2.0 / (9.0 * k));
}

// Exceeded with probability 3e-5 per statistic.
constexpr double kCritical = 4.0;

TEST_CASE("sampled tokens follow the target after every rule, with and without drafts",
          "[sampling][distribution]") {
  const std::vector<NamedRules> all = AllRules();
  for (size_t i = 0; i < all.size(); ++i) {
    const OracleRules& rules = all[i].rules;
    INFO(all[i].name);
    const std::vector<double> p =
        OracleDistribution(rules, OracleRuled(rules, Logits()[0], kPrompt, kOutput));
    CHECK(Deviation(Sample(rules, false, i).first, p) < kCritical);
    const Counts counts = Sample(rules, true, i + 100);
    CHECK(Deviation(counts.first, p) < kCritical);
    int64_t tested = 0;
    for (size_t t = 0; t < p.size(); ++t) {
      std::vector<int32_t> output = kOutput;
      output.push_back(static_cast<int32_t>(t));
      INFO("after token " << t);
      int64_t blocks = 0;
      for (const int c : counts.second[t]) blocks += c;
      if (blocks == 0) continue;
      CHECK(Deviation(counts.second[t],
                      OracleDistribution(rules, OracleRuled(rules, Logits()[1], kPrompt, output))) <
            kCritical);
      tested += blocks;
    }
    CHECK(tested > 2000);
  }
}

TEST_CASE("each rule of the distribution test makes a difference", "[sampling][distribution]") {
  OracleRules plain;
  plain.temperature = 0.9;
  const std::vector<double> p =
      OracleDistribution(plain, OracleRuled(plain, Logits()[0], kPrompt, kOutput));
  for (const NamedRules& n : AllRules()) {
    INFO(n.name);
    CHECK(Deviation(Sample(n.rules, true, 7).first, p) > kCritical);
  }
}

}  // namespace
}  // namespace firesteel
