// Steps that leave the draft context out: what drafting needs of it is its window, no more.
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/engine_runner.h"
#include "tests/support/rank_harness.h"

namespace firesteel {
namespace {

constexpr int32_t kWindow = 128;
constexpr int32_t kChunk = 16;

TEST_CASE("drafts need the context of their window and of nothing before it", "[draft_context]") {
  EngineOptions options = DemoEngineOptions(4);
  const std::vector<GreedyCase> cases = ReadGreedyCases("greedy_long.json", 1);
  const std::vector<int32_t>& prompt = cases[0].prompt;
  const int32_t anchor = (static_cast<int32_t>(prompt.size()) - 1) / kChunk * kChunk;
  REQUIRE(anchor > kWindow + kChunk);

  RankHarness whole(options);
  const RankHarness::Proposal expected = whole.Propose(0, prompt, anchor, kChunk);
  RankHarness windowed(options);
  windowed.SkipCommitsUpTo(anchor - kWindow);
  const RankHarness::Proposal same = windowed.Propose(0, prompt, anchor, kChunk);
  CHECK(same.base_logits == expected.base_logits);
  CHECK(same.tokens == expected.tokens);
  CHECK(same.confidence == expected.confidence);
  RankHarness gapped(options);
  gapped.SkipCommitsUpTo(anchor - kWindow + kChunk);
  CHECK(gapped.Propose(0, prompt, anchor, kChunk).base_logits != expected.base_logits);
}

}  // namespace
}  // namespace firesteel
