#include "kernels/ops/markov/markov.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ops/verify/sampling_math.h"
#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/kernels/support/slot_state.h"
#include "tests/kernels/support/test_weight.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kVocab = 37;
constexpr int32_t kRank = 9;
constexpr int32_t kBlock = 5;
constexpr int32_t kSlots = 4;
constexpr int32_t kPadded = 5;
constexpr int32_t kHidden = 13;

size_t N(int64_t i) { return static_cast<size_t>(i); }

// Draft blocks of three sequences in slots 2, 0 and 3, at temperatures 0, 0.7 and 0.
class Markov {
 public:
  explicit Markov(uint64_t seed = 140)
      : random(seed),
        slots({.slots = kSlots, .draft_length = kBlock, .vocab = kVocab}),
        w1(RandomBf16(random, kVocab * kRank, -1.0F, 1.0F)),
        w2(MakeWeight(random, DType::kBf16, kVocab, kRank)),
        base(PoisonedFloats(kPadded * kBlock * kVocab)),
        logits(PoisonedFloats(kPadded * kVocab)),
        slot{2, 0, 3, -1, -1},
        chain(N(kPadded * (kBlock + 1)), 1 << 28),
        position(N(kPadded * kBlock), 0) {
    slots.sampling[0].temperature = 0.7F;
    for (size_t s = 0; s < 4; ++s) slots.sampling[s].seed = 5 + s;
    slots.draft_tokens.assign(slots.draft_tokens.size(), -99);
    for (int32_t i = 0; i < 3 * kBlock * kVocab; ++i) base[N(i)] = random.Uniform(-3.0F, 3.0F);
    for (int32_t i = 0; i < 3; ++i) {
      chain[N(i * (kBlock + 1))] = 4 * i + 1;
      for (int32_t k = 0; k < kBlock; ++k) position[N(i * kBlock + k)] = 100 * i + 20 + k;
    }
  }

  DraftMeta Draft() {
    DraftMeta d{};
    d.slot = slot.data();
    d.chain = chain.data();
    d.position = position.data();
    return d;
  }
  void Run(OpFixture& ops, int32_t live = 3, int32_t steps = kBlock) {
    for (int32_t k = 0; k < steps; ++k) {
      ops.device().kernels().markov_step(
          ops.stream(), MarkovStepArgs{base.data(), w1.data(), w2.weight, logits.data(),
                                       slots.tables(), Draft(), &live, kPadded, kBlock, k});
    }
  }
  int32_t Chain(int32_t i, int32_t k) const { return chain[N(i * (kBlock + 1) + k)]; }

  // L_k of block i after the predecessor that the chain holds.
  std::vector<double> Biased(int32_t i, int32_t k) const {
    std::vector<double> l;
    for (int32_t t = 0; t < kVocab; ++t) {
      double sum = static_cast<double>(base[N((i * kBlock + k) * kVocab + t)]);
      for (int32_t c = 0; c < kRank; ++c) {
        sum += w2.At(t, c) * ReferenceBf16(w1[N(Chain(i, k) * kRank + c)]);
      }
      l.push_back(sum);
    }
    return l;
  }

  TestRandom random;
  SlotState slots;
  std::vector<uint16_t> w1;
  TestWeight w2;
  std::vector<float> base, logits;
  std::vector<int32_t> slot, chain, position;
};

TEST_CASE("greedy proposals are the best biased logits, left to right", "[ops][markov]") {
  OpFixture ops(2);
  for (uint64_t seed = 140; seed < 150; ++seed) {
    Markov m(seed);
    m.Run(ops);
    for (const int32_t i : {0, 2}) {
      for (int32_t k = 0; k < kBlock; ++k) {
        const std::vector<double> l = m.Biased(i, k);
        const auto best = std::max_element(l.begin(), l.end()) - l.begin();
        CHECK(m.Chain(i, k + 1) == best);
        CHECK(m.slots.draft_tokens[N(m.slot[N(i)] * kBlock + k)] == m.Chain(i, k + 1));
      }
    }
  }
}

TEST_CASE("the stored q is the softmax that the proposal was drawn from", "[ops][markov]") {
  OpFixture ops(2);
  Markov m;
  m.Run(ops);
  for (int32_t k = 0; k < kBlock; ++k) {
    std::vector<double> wanted = m.Biased(1, k);
    double sum = 0.0;
    for (double& v : wanted) sum += v = std::exp(v / 0.7);
    const float* q = m.slots.Probs(0, k);
    for (int32_t t = 0; t < kVocab; ++t) {
      CHECK(std::fabs(static_cast<double>(q[t]) - wanted[N(t)] / sum) < 1e-6);
    }
    // The token is proposed for the position after its row, and the draw is keyed by that position.
    const int64_t position = 120 + k + 1;
    CHECK(m.Chain(1, k + 1) == DrawIndex(q, kVocab, 5, position, DrawPurpose::kDraft));
    CHECK(m.slots.draft_tokens[N(k)] == m.Chain(1, k + 1));
  }
}

TEST_CASE("a step's logits differ from its base by the predecessor's bias", "[ops][markov]") {
  OpFixture ops(1);
  Markov m;
  for (int32_t steps = 1; steps <= kBlock; ++steps) {
    m.Run(ops, 3, steps);
    for (int32_t i = 0; i < 3; ++i) {
      const std::vector<double> wanted = m.Biased(i, steps - 1);
      for (int32_t t = 0; t < kVocab; ++t) {
        const double found = static_cast<double>(m.logits[N(i * kVocab + t)]);
        REQUIRE(std::fabs(found - wanted[N(t)]) < 1e-5);
      }
    }
  }
}

TEST_CASE("proposals leave greedy probabilities, other slots and padding alone", "[ops][markov]") {
  OpFixture ops(2);
  Markov m;
  m.slots.draft_probs.assign(m.slots.draft_probs.size(), -1.0F);
  m.Run(ops);
  for (const int32_t slot : {1, 2, 3}) {
    for (int32_t i = 0; i < kBlock * kVocab; ++i) REQUIRE(m.slots.Probs(slot, 0)[i] == -1.0F);
  }
  for (int32_t k = 0; k < kBlock; ++k) CHECK(m.slots.draft_tokens[N(kBlock + k)] == -99);
  for (size_t i = N(3 * (kBlock + 1)); i < m.chain.size(); ++i) CHECK(m.chain[i] == 1 << 28);
  for (size_t i = N(3 * kVocab); i < m.logits.size(); ++i) CHECK(IsPoison(m.logits[i]));
}

TEST_CASE("a block proposes the same alone and among others", "[ops][markov]") {
  OpFixture ops(3);
  Markov all;
  all.Run(ops);
  for (int32_t i = 0; i < 3; ++i) {
    Markov one;
    std::copy_n(all.base.begin() + i * kBlock * kVocab, kBlock * kVocab, one.base.begin());
    one.slot[0] = all.slot[N(i)];
    one.chain[0] = all.Chain(i, 0);
    std::copy_n(all.position.begin() + i * kBlock, kBlock, one.position.begin());
    one.Run(ops, 1);
    for (int32_t k = 0; k < kBlock; ++k) CHECK(one.Chain(0, k + 1) == all.Chain(i, k + 1));
    const int32_t slot = all.slot[N(i)];
    for (int32_t c = 0; c < kBlock * kVocab; ++c) {
      REQUIRE(one.slots.Probs(slot, 0)[c] == all.slots.Probs(slot, 0)[c]);
    }
  }
}

// One step of many draft blocks over tables of the rank that tensor cores take; the vocabulary fills no last tile.
class WideStep {
 public:
  static constexpr int32_t kWideVocab = 1037;
  static constexpr int32_t kWideRank = 256;

  explicit WideStep(int32_t sequences)
      : random(150),
        slots({.slots = sequences, .draft_length = 1, .vocab = kWideVocab}),
        w1(RandomBf16(random, kWideVocab * kWideRank, -1.0F, 1.0F)),
        w2(MakeWeight(random, DType::kBf16, kWideVocab, kWideRank)),
        base(RandomFloats(random, sequences * kWideVocab, -3.0F, 3.0F)),
        logits(PoisonedFloats((sequences + 1) * kWideVocab)),
        position(N(sequences), 7),
        sequences_(sequences) {
    for (int32_t i = 0; i < sequences; ++i) {
      slot.push_back((i * 7 + 3) % sequences);  // 7 divides no count that the tests use
      chain.push_back(i * 29 % kWideVocab);
      chain.push_back(-1);
      slots.sampling[N(i)].temperature = i % 2 == 0 ? 0.0F : 0.8F;
      slots.sampling[N(i)].seed = 90 + static_cast<uint64_t>(i);
    }
  }
  void Run(OpFixture& ops) {
    DraftMeta d{};
    d.slot = slot.data();
    d.chain = chain.data();
    d.position = position.data();
    const int32_t live = sequences_;
    ops.device().kernels().markov_step(
        ops.stream(), MarkovStepArgs{base.data(), w1.data(), w2.weight, logits.data(),
                                     slots.tables(), d, &live, sequences_ + 1, 1, 0});
  }
  double Logit(int32_t i, int32_t t) const {
    double sum = static_cast<double>(base[N(i * kWideVocab + t)]);
    for (int32_t c = 0; c < kWideRank; ++c) {
      sum += w2.At(t, c) * ReferenceBf16(w1[N(chain[N(2 * i)] * kWideRank + c)]);
    }
    return sum;
  }
  // Makes block 0 what block `i` of `other` is, in the same slot.
  void TakeBlock(const WideStep& other, int32_t i) {
    std::copy_n(other.base.begin() + i * kWideVocab, kWideVocab, base.begin());
    chain[0] = other.chain[N(2 * i)];
    slots.sampling[0] = other.slots.sampling[N(other.slot[N(i)])];
  }

  TestRandom random;
  SlotState slots;
  std::vector<uint16_t> w1;
  TestWeight w2;
  std::vector<float> base, logits;
  std::vector<int32_t> slot, chain, position;

 private:
  int32_t sequences_;
};

TEST_CASE("many blocks share one pass over a table of the published rank", "[ops][markov]") {
  OpFixture ops(2);
  const int32_t sequences = GENERATE(1, 3, 19, 130);
  WideStep m(sequences);
  m.Run(ops);
  int wrong = 0;
  for (int32_t i = 0; i < sequences; ++i) {
    const float* found = m.logits.data() + N(i * WideStep::kWideVocab);
    // Every logit of the first blocks, some of each of the others.
    for (int32_t t = i < 3 ? 0 : i % 41; t < WideStep::kWideVocab; t += i < 3 ? 1 : 41) {
      if (!(std::fabs(static_cast<double>(found[t]) - m.Logit(i, t)) < 5e-5)) ++wrong;
    }
    const int32_t slot = m.slot[N(i)];
    const int32_t token = m.chain[N(2 * i + 1)];
    if (m.slots.sampling[N(slot)].temperature == 0.0F) {
      CHECK(token == ArgMax(found, WideStep::kWideVocab));
    } else {
      CHECK(token == DrawIndex(m.slots.Probs(slot, 0), WideStep::kWideVocab,
                               m.slots.sampling[N(slot)].seed, 8, DrawPurpose::kDraft));
    }
    CHECK(m.slots.draft_tokens[N(slot)] == token);
  }
  CHECK(wrong == 0);
  for (size_t i = N(sequences * WideStep::kWideVocab); i < m.logits.size(); ++i) {
    REQUIRE(IsPoison(m.logits[i]));
  }
}

TEST_CASE("a block of the published rank has the same bits alone and among others",
          "[ops][markov]") {
  OpFixture ops(2);
  WideStep all(19);
  all.Run(ops);
  for (const int32_t i : {0, 5, 8, 18}) {
    WideStep one(1);
    one.TakeBlock(all, i);
    one.Run(ops);
    CHECK(one.chain[1] == all.chain[N(2 * i + 1)]);
    int different = 0;
    for (int32_t t = 0; t < WideStep::kWideVocab; ++t) {
      different += one.logits[N(t)] == all.logits[N(i * WideStep::kWideVocab + t)] ? 0 : 1;
    }
    CHECK(different == 0);
  }
}

TEST_CASE("no draft sequence means nothing is written", "[ops][markov]") {
  OpFixture ops(1);
  Markov m;
  const std::vector<int32_t> before = m.chain;
  m.Run(ops, 0);
  CHECK(m.chain == before);
  CHECK(std::all_of(m.logits.begin(), m.logits.end(), IsPoison));
}

TEST_CASE("confidence reads the hidden row and the predecessor's embedding", "[ops][confidence]") {
  OpFixture ops(2);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  const int32_t steps = GENERATE(1, 3, kBlock);
  Markov m;
  m.Run(ops);
  RowMatrix hidden(kPadded * kBlock, kHidden, dtype);
  hidden.Randomize(m.random, 3 * kBlock);
  const std::vector<uint16_t> weight = RandomBf16(m.random, kHidden + kRank, -1.0F, 1.0F);
  std::vector<float> logit = PoisonedFloats(kPadded * steps);
  const int32_t live = 3;
  ops.device().kernels().confidence(
      ops.stream(), ConfidenceArgs{hidden.rows(), m.w1.data(), weight.data(), m.Draft(),
                                   logit.data(), &live, kPadded, kHidden, kRank, kBlock, steps});
  for (int32_t i = 0; i < 3; ++i) {
    for (int32_t k = 0; k < steps; ++k) {
      double wanted = 0.0;
      for (int32_t c = 0; c < kHidden; ++c) {
        wanted += ReferenceBf16(weight[N(c)]) * static_cast<double>(hidden.Get(i * kBlock + k, c));
      }
      for (int32_t c = 0; c < kRank; ++c) {
        wanted += ReferenceBf16(weight[N(kHidden + c)]) *
                  ReferenceBf16(m.w1[N(m.Chain(i, k) * kRank + c)]);
      }
      CHECK(std::fabs(static_cast<double>(logit[N(i * steps + k)]) - wanted) < 1e-5);
    }
  }
  for (size_t i = N(3 * steps); i < logit.size(); ++i) CHECK(IsPoison(logit[i]));
}

}  // namespace
}  // namespace firesteel
