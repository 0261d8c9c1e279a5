#include "kernels/core/philox.h"

#include <cmath>
#include <set>

#include "kernels/ops/verify/sampling_math.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

TEST_CASE("philox reproduces the published known answers", "[core][philox]") {
  const PhiloxBlock zeros = Philox(0, 0, 0);
  CHECK(zeros.word[0] == 0x6627e8d5U);
  CHECK(zeros.word[1] == 0xe169c58dU);
  CHECK(zeros.word[2] == 0xbc57ac4cU);
  CHECK(zeros.word[3] == 0x9b00dbd8U);
  const uint64_t ones = ~uint64_t{0};
  const PhiloxBlock full = Philox(ones, ones, ones);
  CHECK(full.word[0] == 0x408f276dU);
  CHECK(full.word[1] == 0x41c83b0eU);
  CHECK(full.word[2] == 0xa20bc7c6U);
  CHECK(full.word[3] == 0x6d5451fdU);
}

TEST_CASE("philox reproduces the known answer for the digits of pi", "[core][philox]") {
  // Counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0, low words first.
  const PhiloxBlock b = Philox(0x299f31d0a4093822ULL, 0x0370734413198a2eULL, 0x85a308d3243f6a88ULL);
  CHECK(b.word[0] == 0xd16cfe09U);
  CHECK(b.word[1] == 0x94fdccebU);
  CHECK(b.word[2] == 0x5001e420U);
  CHECK(b.word[3] == 0x24126ea1U);
}

TEST_CASE("seed, position, purpose and index each change a draw", "[core][philox]") {
  std::set<uint32_t> seen;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    for (int64_t position = 0; position < 3; ++position) {
      for (const DrawPurpose purpose :
           {DrawPurpose::kDraft, DrawPurpose::kAccept, DrawPurpose::kTarget}) {
        for (uint32_t index = 0; index < 3; ++index) {
          seen.insert(DrawBlock(seed, position, purpose, index).word[0]);
        }
      }
    }
  }
  CHECK(seen.size() == 81);
}

TEST_CASE("a uniform draw never reaches 0 or 1", "[core][philox]") {
  for (const uint32_t word : {0U, 1U, 0xffU, 0x100U, 0x7fffffffU, 0x80000000U, 0xfffffdffU,
                              0xfffffe00U, 0xfffffeffU, 0xffffff00U, 0xffffffffU}) {
    const float u = UniformFromWord(word);
    INFO("word " << word);
    CHECK(u > 0.0F);
    CHECK(u < 1.0F);
    CHECK(-std::log(u) > 0.0F);
    CHECK(std::fabs(static_cast<double>(u) - static_cast<double>(word) * 0x1p-32) < 0x1p-22);
  }
}

TEST_CASE("drawing an index never picks a weight of zero", "[core][philox]") {
  const float weight[5] = {0.0F, 0.25F, 0.0F, 0.75F, 0.0F};
  int threes = 0;
  constexpr int kDraws = 4000;
  for (int i = 0; i < kDraws; ++i) {
    const int32_t index = DrawIndex(weight, 5, 7, i, DrawPurpose::kTarget);
    REQUIRE((index == 1 || index == 3));
    threes += index == 3 ? 1 : 0;
  }
  // Five standard deviations of a binomial with p = 0.75.
  CHECK(std::fabs(threes - 0.75 * kDraws) < 5 * std::sqrt(kDraws * 0.75 * 0.25));
}

TEST_CASE("the best index is the first of equal values and never NaN", "[core][philox]") {
  const float ties[4] = {1.0F, 3.0F, 3.0F, 2.0F};
  CHECK(ArgMax(ties, 4) == 1);
  const float nan = std::nanf("");
  const float leading[3] = {nan, -5.0F, nan};
  CHECK(ArgMax(leading, 3) == 1);
  const float inner[3] = {1.0F, nan, 2.0F};
  CHECK(ArgMax(inner, 3) == 2);
}

}  // namespace
}  // namespace firesteel
