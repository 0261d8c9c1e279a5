#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/ops/moe/moe.h"
#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kRows = 70;
constexpr int32_t kLive = 61;
constexpr float kScaling = 1.5F;

struct Routing {
  std::vector<int32_t> expert;
  std::vector<float> weight;
};

Routing Route(OpFixture& ops, const std::vector<float>& logits, const float* bias,
              const int64_t* table, const int32_t* token, int32_t live, int32_t experts,
              int32_t top_k) {
  Routing r{std::vector<int32_t>(static_cast<size_t>(kRows * top_k), -7),
            PoisonedFloats(kRows * top_k)};
  ops.device().kernels().moe_route(
      ops.stream(), MoeRouteArgs{logits.data(), bias, table, token, r.expert.data(),
                                 r.weight.data(), &live, kRows, experts, top_k, kScaling});
  return r;
}

double Score(float logit) { return std::sqrt(std::log1p(std::exp(static_cast<double>(logit)))); }

// Live rows random, padding rows NaN.
std::vector<float> Logits(TestRandom& random, int32_t experts) {
  std::vector<float> logits = PoisonedFloats(kRows * experts);
  for (int32_t i = 0; i < kLive * experts; ++i) {
    logits[static_cast<size_t>(i)] = random.Uniform(-6.0F, 6.0F);
  }
  return logits;
}

int CountWrongWeights(const std::vector<float>& logits, const Routing& r, int32_t experts,
                      int32_t top_k) {
  int wrong = 0;
  for (int32_t row = 0; row < kLive; ++row) {
    const int32_t* expert = &r.expert[static_cast<size_t>(row * top_k)];
    double sum = 1e-20;
    for (int32_t k = 0; k < top_k; ++k) {
      sum += Score(logits[static_cast<size_t>(row * experts + expert[k])]);
    }
    for (int32_t k = 0; k < top_k; ++k) {
      const double wanted =
          Score(logits[static_cast<size_t>(row * experts + expert[k])]) / sum * 1.5;
      const double found = static_cast<double>(r.weight[static_cast<size_t>(row * top_k + k)]);
      if (!(std::fabs(found - wanted) <= 1e-5 * wanted)) ++wrong;
    }
  }
  return wrong;
}

bool PaddingUntouched(const Routing& r, int32_t live, int32_t top_k) {
  const auto first = static_cast<std::ptrdiff_t>(live * top_k);
  return std::all_of(r.expert.begin() + first, r.expert.end(), [](int32_t e) { return e == -7; }) &&
         std::all_of(r.weight.begin() + first, r.weight.end(), IsPoison);
}

TEST_CASE("learned routing picks the best biased scores and weighs without the bias",
          "[ops][moe_route]") {
  OpFixture ops(3);
  TestRandom random(50);
  for (const int32_t experts : {1, 8, 33}) {
    for (const int32_t top_k : {1, 6}) {
      if (top_k > experts) continue;
      const std::vector<float> logits = Logits(random, experts);
      const std::vector<float> bias = RandomFloats(random, experts, -1.0F, 1.0F);
      const Routing r = Route(ops, logits, bias.data(), nullptr, nullptr, kLive, experts, top_k);
      int wrong = 0;
      for (int32_t row = 0; row < kLive; ++row) {
        std::vector<int32_t> order(static_cast<size_t>(experts));
        std::iota(order.begin(), order.end(), 0);
        const auto biased = [&](int32_t e) {
          return Score(logits[static_cast<size_t>(row * experts + e)]) +
                 static_cast<double>(bias[static_cast<size_t>(e)]);
        };
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return biased(a) > biased(b); });
        for (int32_t k = 0; k < top_k; ++k) {
          const int32_t found = r.expert[static_cast<size_t>(row * top_k + k)];
          wrong += found == order[static_cast<size_t>(k)] ? 0 : 1;
        }
      }
      INFO("experts " << experts << " top_k " << top_k);
      CHECK(wrong == 0);
      CHECK(CountWrongWeights(logits, r, experts, top_k) == 0);
      CHECK(PaddingUntouched(r, kLive, top_k));
    }
  }
}

TEST_CASE("equal scores go to the lower expert", "[ops][moe_route]") {
  OpFixture ops(1);
  std::vector<float> logits(kRows * 6, 0.5F);
  const std::vector<float> bias = {0.0F, 0.0F, 1.0F, 0.0F, 1.0F, 0.0F};
  const Routing r = Route(ops, logits, bias.data(), nullptr, nullptr, 1, 6, 4);
  CHECK(std::vector<int32_t>(r.expert.begin(), r.expert.begin() + 4) ==
        std::vector<int32_t>{2, 4, 0, 1});
}

TEST_CASE("hash routing reads the token table and weighs by the gate", "[ops][moe_route]") {
  OpFixture ops(3);
  TestRandom random(51);
  constexpr int32_t kExperts = 12;
  constexpr int32_t kTopK = 3;
  constexpr int32_t kVocab = 20;
  std::vector<int64_t> table;
  for (int32_t t = 0; t < kVocab; ++t) {
    for (int32_t k = 0; k < kTopK; ++k) table.push_back((t * 5 + k * 7) % kExperts);
  }
  const std::vector<float> logits = Logits(random, kExperts);
  std::vector<int32_t> token(kRows, 1 << 28);
  for (int32_t r = 0; r < kLive; ++r) token[static_cast<size_t>(r)] = random.Below(kVocab);
  const Routing r = Route(ops, logits, nullptr, table.data(), token.data(), kLive, kExperts, kTopK);
  for (int32_t row = 0; row < kLive; ++row) {
    for (int32_t k = 0; k < kTopK; ++k) {
      const int32_t id = token[static_cast<size_t>(row)];
      REQUIRE(r.expert[static_cast<size_t>(row * kTopK + k)] ==
              table[static_cast<size_t>(id * kTopK + k)]);
    }
  }
  CHECK(CountWrongWeights(logits, r, kExperts, kTopK) == 0);
  CHECK(PaddingUntouched(r, kLive, kTopK));
}

TEST_CASE("extreme gate logits give finite weights that sum to the scaling", "[ops][moe_route]") {
  OpFixture ops(1);
  std::vector<float> logits(kRows * 4, 0.0F);
  logits[0] = 1e4F;
  logits[1] = -30.0F;
  logits[2] = 25.0F;
  logits[3] = -8.0F;
  const std::vector<float> bias(4, 0.0F);
  const Routing r = Route(ops, logits, bias.data(), nullptr, nullptr, 1, 4, 3);
  CHECK(r.expert[0] == 0);
  CHECK(r.expert[1] == 2);
  CHECK(r.expert[2] == 3);
  CHECK(std::fabs(r.weight[0] + r.weight[1] + r.weight[2] - kScaling) < 1e-5F);
  CHECK(std::fabs(r.weight[1] / r.weight[0] - 0.05F) < 1e-5F);  // sqrt(25 / 1e4)
}

TEST_CASE("a broken row still names distinct valid experts", "[ops][moe_route]") {
  OpFixture ops(1);
  const std::vector<float> logits = PoisonedFloats(kRows * 5);
  const std::vector<float> bias(5, 0.0F);
  const Routing r = Route(ops, logits, bias.data(), nullptr, nullptr, 1, 5, 3);
  CHECK(std::vector<int32_t>(r.expert.begin(), r.expert.begin() + 3) ==
        std::vector<int32_t>{0, 1, 2});
}

TEST_CASE("a row's routing does not depend on the batch", "[ops][moe_route]") {
  OpFixture ops(3);
  TestRandom random(52);
  const std::vector<float> logits = Logits(random, 16);
  const std::vector<float> bias = RandomFloats(random, 16, -1.0F, 1.0F);
  const Routing all = Route(ops, logits, bias.data(), nullptr, nullptr, kLive, 16, 4);
  for (int32_t row : {0, 31, 60}) {
    std::vector<float> one = PoisonedFloats(kRows * 16);
    std::copy_n(logits.begin() + row * 16, 16, one.begin());
    const Routing alone = Route(ops, one, bias.data(), nullptr, nullptr, 1, 16, 4);
    for (int32_t k = 0; k < 4; ++k) {
      CHECK(alone.expert[static_cast<size_t>(k)] == all.expert[static_cast<size_t>(row * 4 + k)]);
      CHECK(alone.weight[static_cast<size_t>(k)] == all.weight[static_cast<size_t>(row * 4 + k)]);
    }
  }
}

}  // namespace
}  // namespace firesteel
