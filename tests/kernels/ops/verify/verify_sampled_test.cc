#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/ops/verify/sampling_math.h"
#include "kernels/ops/verify/verify.h"
#include "tests/kernels/support/sampled_blocks.h"
#include "tests/kernels/support/test_random.h"
#include "tests/kernels/support/verify_fixture.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

using sampled_blocks::Counts;
using sampled_blocks::kDrafts;
using sampled_blocks::kTemperature;
using sampled_blocks::kVocab;
using sampled_blocks::Logits;
using sampled_blocks::N;
using sampled_blocks::Proposals;
using sampled_blocks::Sample;

std::vector<double> Softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  for (const float l : logits) p.push_back(std::exp(static_cast<double>(l) / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& v : p) v /= sum;
  return p;
}

// The most likely tokens until their mass reaches top_p, renormalised.
std::vector<double> Nucleus(std::vector<double> p, double top_p) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
  double mass = 0.0;
  std::vector<double> kept(p.size(), 0.0);
  for (const size_t t : order) {
    if (mass >= top_p) break;
    kept[t] = p[t];
    mass += p[t];
  }
  for (double& v : kept) v /= mass;
  return kept;
}

// Pearson's statistic over the tokens that can occur; a token that cannot occur must not.
double ChiSquare(const std::vector<int>& counts, const std::vector<double>& p) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0);
  double statistic = 0.0;
  for (size_t t = 0; t < p.size(); ++t) {
    if (p[t] == 0.0) {
      CHECK(counts[t] == 0);
      continue;
    }
    const double expected = total * p[t];
    statistic += (counts[t] - expected) * (counts[t] - expected) / expected;
  }
  return statistic;
}

// 7 degrees of freedom: exceeded with probability 1e-4.
constexpr double kCritical = 29.9;

TEST_CASE("emitted tokens follow the target exactly when drafts come from q", "[ops][verify]") {
  const Counts counts = Sample(Logits(), Proposals(), 1.0F, true);
  for (int32_t i = 0; i <= kDrafts; ++i) {
    const std::vector<double> p = Softmax(Logits()[N(i)], 0.8);
    INFO("token " << i);
    CHECK(ChiSquare(counts.token[i], p) < kCritical);
  }
  const std::vector<double> p = Softmax(Logits()[0], 0.8);
  double rate = 0.0;
  for (int32_t t = 0; t < kVocab; ++t) {
    rate += std::min(p[N(t)], static_cast<double>(Proposals()[0][N(t)]));
  }
  const double deviation = std::sqrt(counts.steps * rate * (1.0 - rate));
  CHECK(std::fabs(counts.accepted_first - counts.steps * rate) < 4 * deviation);
}

TEST_CASE("a plain sample follows the target", "[ops][verify]") {
  const Counts counts = Sample(Logits(), Proposals(), 1.0F, false);
  CHECK(ChiSquare(counts.token[0], Softmax(Logits()[0], 0.8)) < kCritical);
}

TEST_CASE("top-p is applied to the target and renormalised, with and without drafts",
          "[ops][verify]") {
  const bool draft = GENERATE(false, true);
  for (const float top_p : {0.3F, 0.7F, 0.95F}) {
    const Counts counts = Sample(Logits(), Proposals(), top_p, draft);
    for (int32_t i = 0; i <= (draft ? kDrafts : 0); ++i) {
      const std::vector<double> p =
          Nucleus(Softmax(Logits()[N(i)], 0.8), static_cast<double>(top_p));
      INFO("top_p " << top_p << " token " << i);
      CHECK(ChiSquare(counts.token[i], p) < kCritical);
    }
  }
}

TEST_CASE("a tiny top-p is greedy and its ties go to the lower token", "[ops][verify]") {
  OpFixture ops(1);
  std::vector<float> tie(kVocab, 0.0F);
  tie[3] = tie[6] = 1.0F;
  VerifyFixture f(50, 1, kVocab);
  for (int32_t s = 0; s < 50; ++s) {
    f.slots.sampling[N(s)].seed = static_cast<uint64_t>(s);
    f.slots.sampling[N(s)].temperature = 1.0F;
    f.slots.sampling[N(s)].top_p = 1e-6F;
    f.AddDecode(s, 5, {tie}, 0);
  }
  f.Run(ops);
  for (int32_t s = 0; s < 50; ++s) CHECK(f.Tokens(s) == std::vector<int32_t>{3});
}

TEST_CASE("a draft that the target excludes is never accepted", "[ops][verify]") {
  OpFixture ops(1);
  VerifyFixture f(200, 1, kVocab);
  std::vector<float> sure(kVocab, -200.0F);
  sure[2] = 0.0F;
  for (int32_t s = 0; s < 200; ++s) {
    f.slots.sampling[N(s)].seed = static_cast<uint64_t>(s);
    f.slots.sampling[N(s)].temperature = 1.0F;
    f.SetDraft(s, 0, 5, std::vector<float>(kVocab, 0.125F));
    f.AddDecode(s, 5, {sure, sure}, 1);
  }
  f.Run(ops);
  for (int32_t s = 0; s < 200; ++s) CHECK(f.Tokens(s) == std::vector<int32_t>{2});
}

TEST_CASE("a sampled sequence emits the same in any slot and any batch", "[ops][verify]") {
  OpFixture ops(3);
  TestRandom random(130);
  constexpr int32_t kCount = 12;
  const auto add = [&](VerifyFixture& f, int32_t slot, int32_t which) {
    f.slots.sampling[N(slot)].seed = static_cast<uint64_t>(which + 1);
    f.slots.sampling[N(slot)].temperature = kTemperature;
    f.slots.sampling[N(slot)].top_p = which % 2 == 0 ? 1.0F : 0.9F;
    for (int32_t k = 0; k < kDrafts; ++k) {
      f.SetDraft(slot, k, (which + 3 * k) % 6, Proposals()[N(k)]);
    }
    f.AddDecode(slot, 40 + which, Logits(), kDrafts);
  };
  VerifyFixture together(kCount, kDrafts, kVocab);
  for (int32_t i = 0; i < kCount; ++i) add(together, i, i);
  together.Run(ops);
  VerifyFixture shuffled(kCount, kDrafts, kVocab);
  for (int32_t i = 0; i < kCount; ++i) add(shuffled, (i * 5 + 2) % kCount, (i * 7) % kCount);
  shuffled.Run(ops);
  for (int32_t i = 0; i < kCount; ++i) {
    CHECK(shuffled.Tokens(i) == together.Tokens((i * 7) % kCount));
    VerifyFixture alone(kCount, kDrafts, kVocab);
    add(alone, random.Below(kCount), i);
    alone.Run(ops);
    CHECK(alone.Tokens(0) == together.Tokens(i));
  }
}

TEST_CASE("greedy and sampled sequences share a step", "[ops][verify]") {
  OpFixture ops(1);
  VerifyFixture f(2, kDrafts, kVocab);
  f.slots.sampling[1].temperature = 0.5F;
  f.SetDraft(0, 0, 2, {});
  f.SetDraft(0, 1, 0, {});
  f.SetDraft(1, 0, 1, Proposals()[0]);
  f.SetDraft(1, 1, 1, Proposals()[1]);
  f.AddDecode(0, 5, Logits(), kDrafts);
  f.AddDecode(1, 5, Logits(), kDrafts);
  f.Run(ops);
  CHECK(f.Tokens(0) == std::vector<int32_t>{2, 1});
  CHECK(f.results[1].num_tokens == f.results[1].accepted + 1);
}

TEST_CASE("cuts of a long row keep the same tokens wherever they are", "[ops][verify]") {
  OpFixture ops(2);
  constexpr int32_t kLongVocab = 40003;
  constexpr int32_t kSeeds = 12;
  // About .50, .31 and .18 of the mass; two of equal weight, of which the lower token comes first.
  std::vector<float> apart(kLongVocab, -5.0F);
  apart[39990] = 10.0F;
  apart[17] = 9.5F;
  apart[20001] = 9.0F;
  std::vector<float> tied = apart;
  tied[20001] = 9.5F;
  struct Case {
    const std::vector<float>* logits;
    SlotSampling sampling;
    std::vector<int32_t> kept;
  };
  std::vector<Case> cases = {{&apart, {}, {17, 20001, 39990}},
                             {&apart, {}, {17, 39990}},
                             {&apart, {}, {17, 39990}},
                             {&tied, {}, {17, 39990}},
                             {&tied, {}, {17, 39990}}};
  cases[0].sampling.top_k = 3;
  cases[1].sampling.top_p = 0.7F;
  cases[2].sampling.min_p = 0.5F;
  cases[3].sampling.top_k = 2;
  cases[4].sampling.top_p = 0.6F;
  for (const Case& c : cases) {
    VerifyFixture f(kSeeds, 1, kLongVocab);
    for (int32_t s = 0; s < kSeeds; ++s) {
      f.slots.sampling[N(s)] = c.sampling;
      f.slots.sampling[N(s)].temperature = 1.0F;
      f.slots.sampling[N(s)].seed = static_cast<uint64_t>(s + 1);
      f.AddDecode(s, 5, {*c.logits}, 0);
    }
    f.Run(ops);
    std::vector<float> weight(kLongVocab, 0.0F);
    for (const int32_t t : c.kept) weight[N(t)] = std::exp((*c.logits)[N(t)] - 10.0F);
    for (int32_t s = 0; s < kSeeds; ++s) {
      const int32_t wanted = DrawIndex(weight.data(), kLongVocab, static_cast<uint64_t>(s + 1), 6,
                                       DrawPurpose::kTarget);
      CHECK(f.Tokens(s) == std::vector<int32_t>{wanted});
    }
  }
}

}  // namespace
}  // namespace firesteel
