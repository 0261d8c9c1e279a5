#include <cmath>
#include <limits>
#include <vector>

#include "kernels/ops/verify/verify.h"
#include "tests/kernels/support/verify_fixture.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kVocab = 11;

TEST_CASE("greedy verification accepts drafts up to the first mismatch", "[ops][verify]") {
  OpFixture ops(2);
  for (int32_t matching = 0; matching <= 4; ++matching) {
    VerifyFixture f(1, 4, kVocab);
    std::vector<std::vector<float>> rows;
    std::vector<int32_t> wanted;
    for (int32_t i = 0; i <= 4; ++i) {
      rows.push_back(Favor(kVocab, i + 3));
      if (i <= matching) wanted.push_back(i + 3);
      if (i < 4) f.SetDraft(0, i, i < matching ? i + 3 : 1, {});
    }
    f.AddDecode(0, 20, rows, 4);
    f.Run(ops);
    INFO("matching " << matching);
    CHECK(f.Tokens(0) == wanted);
    CHECK(f.results[0].accepted == matching);
    CHECK(f.results[0].drafted == 4);
    CHECK(f.results[0].slot == 0);
    CHECK(f.slots.length[0] == 20 + matching + 1);
    CHECK(f.slots.last_token[0] == wanted.back());
  }
}

TEST_CASE("a match after a mismatch is not accepted", "[ops][verify]") {
  OpFixture ops(1);
  VerifyFixture f(1, 3, kVocab);
  f.SetDraft(0, 0, 1, {});
  f.SetDraft(0, 1, 4, {});  // would match row 1
  f.SetDraft(0, 2, 5, {});
  f.AddDecode(0, 5, {Favor(kVocab, 3), Favor(kVocab, 4), Favor(kVocab, 5), Favor(kVocab, 6)}, 3);
  f.Run(ops);
  CHECK(f.Tokens(0) == std::vector<int32_t>{3});
  CHECK(f.slots.length[0] == 6);
}

TEST_CASE("a row past the verified drafts ignores what the draft table holds", "[ops][verify]") {
  OpFixture ops(1);
  VerifyFixture f(1, 3, kVocab);
  f.SetDraft(0, 0, 3, {});
  f.SetDraft(0, 1, 4, {});  // not under verification this step
  f.AddDecode(0, 5, {Favor(kVocab, 3), Favor(kVocab, 4)}, 1);
  f.Run(ops);
  CHECK(f.Tokens(0) == std::vector<int32_t>{3, 4});
  CHECK(f.results[0].accepted == 1);
  CHECK(f.results[0].drafted == 1);
}

TEST_CASE("greedy ties go to the lower token", "[ops][verify]") {
  OpFixture ops(1);
  VerifyFixture f(1, 1, kVocab);
  std::vector<float> tie = Favor(kVocab, 7);
  tie[4] = 2.0F;
  f.AddDecode(0, 5, {tie}, 0);
  f.Run(ops);
  CHECK(f.Tokens(0) == std::vector<int32_t>{4});
}

TEST_CASE("a row that is not finite emits nothing and says so, beside a sound one",
          "[ops][verify]") {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    OpFixture ops(1);
    VerifyFixture f(2, 1, kVocab);
    std::vector<float> broken = Favor(kVocab, 6);
    broken[9] = bad;
    f.AddDecode(0, 5, {broken}, 0);
    f.AddDecode(1, 5, {Favor(kVocab, 6)}, 0);
    f.Run(ops);
    CHECK(f.results[0].not_finite == 1);
    CHECK(f.results[0].num_tokens == 0);
    CHECK(f.results[1].not_finite == 0);
    CHECK(f.Tokens(1) == std::vector<int32_t>{6});
  }
}

// Longer than several passes of a GPU's threads, and not a multiple of anything.
constexpr int32_t kLongVocab = 40003;

TEST_CASE("the best token of a long row is found wherever it is", "[ops][verify]") {
  OpFixture ops(2);
  const std::vector<int32_t> best = {0, 3, 4, 2047, 16383, 16384, 39999, 40000, 40002};
  const auto count = static_cast<int32_t>(best.size());
  VerifyFixture f(count, 1, kLongVocab);
  for (int32_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    std::vector<float> row = Favor(kLongVocab, best[at]);
    row[40002] = 2.0F;  // a tie, but for the last
    f.slots.sampling[at].logprobs = 2;
    f.AddDecode(i, 5, {row}, 0);
  }
  f.Run(ops);
  for (int32_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    CHECK(f.Tokens(i) == std::vector<int32_t>{best[at]});
    CHECK(f.logprobs[at].top_token[0] == best[at]);
    CHECK(f.logprobs[at].top_token[1] == (best[at] == 40002 ? 0 : 40002));
  }
}

TEST_CASE("one value that is not finite anywhere in a long row is noticed", "[ops][verify]") {
  OpFixture ops(2);
  const std::vector<int32_t> places = {0, 5, 16384, 40000, 40002};
  const auto count = static_cast<int32_t>(places.size());
  VerifyFixture f(count, 1, kLongVocab);
  for (int32_t i = 0; i < count; ++i) {
    std::vector<float> row = Favor(kLongVocab, 77);
    row[static_cast<size_t>(places[static_cast<size_t>(i)])] =
        std::numeric_limits<float>::quiet_NaN();
    f.AddDecode(i, 5, {row}, 0);
  }
  f.Run(ops);
  for (int32_t i = 0; i < count; ++i) {
    CHECK(f.results[static_cast<size_t>(i)].not_finite == 1);
    CHECK(f.results[static_cast<size_t>(i)].num_tokens == 0);
  }
}

TEST_CASE("a chunk that is not the last advances the slot and emits nothing", "[ops][verify]") {
  OpFixture ops(1);
  VerifyFixture f(1, 2, kVocab);
  f.slots.last_token[0] = 8;
  f.AddPrefill(0, 32, 16, {});
  f.Run(ops);
  CHECK(f.results[0].num_tokens == 0);
  CHECK(f.results[0].slot == 0);
  CHECK(f.slots.length[0] == 48);
  CHECK(f.slots.last_token[0] == 8);
}

TEST_CASE("the last chunk of a prompt emits one token without drafts", "[ops][verify]") {
  OpFixture ops(1);
  VerifyFixture f(1, 2, kVocab);
  f.SetDraft(0, 0, 5, {});  // left over from the slot's former owner
  f.AddPrefill(0, 32, 16, {Favor(kVocab, 5)});
  f.Run(ops);
  CHECK(f.Tokens(0) == std::vector<int32_t>{5});
  CHECK(f.results[0].accepted == 0);
  CHECK(f.results[0].drafted == 0);
  CHECK(f.slots.length[0] == 48);
  CHECK(f.slots.last_token[0] == 5);
}

TEST_CASE("padding records name no slot and slots outside the step keep their state",
          "[ops][verify]") {
  OpFixture ops(3);
  VerifyFixture f(4, 1, kVocab);
  f.slots.length = {1, 2, 3, 4};
  f.slots.last_token = {5, 6, 7, 8};
  f.AddDecode(2, 3, {Favor(kVocab, 9)}, 0);
  f.Run(ops);
  CHECK(f.results[0].slot == 2);
  for (size_t i = 1; i < f.results.size(); ++i) {
    CHECK(f.results[i].slot == -1);
    CHECK(f.results[i].num_tokens == 0);
  }
  CHECK(f.slots.length == std::vector<int32_t>{1, 2, 4, 4});
  CHECK(f.slots.last_token == std::vector<int32_t>{5, 6, 9, 8});
}

}  // namespace
}  // namespace firesteel
