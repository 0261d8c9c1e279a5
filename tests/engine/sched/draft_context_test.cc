// The draft context is left out while drafting does not pay, and nobody drafts from, or shares, what it lacks.
#include <numeric>

#include "tests/engine/sched/scheduler_harness.h"

namespace firesteel {
namespace {

// Drafting costs as much as it could ever save.
SchedulerConfig CostlyDrafts(const RankInfo& info) {
  SchedulerConfig config = ToyConfig(info);
  config.costs.sequences = {1};
  config.costs.draft_length = info.draft_length;
  for (int32_t n = 0; n <= info.draft_length; ++n) config.costs.target_us.push_back(100 + 100 * n);
  config.costs.propose_us = {100};
  return config;
}

bool Skips(const SchedulerHarness& harness) {
  return harness.plan().header().skips_draft_commit != 0;
}

// Past the steps after a (notional) probe, which keep the context.
void RunUntilSkipped(SchedulerHarness* harness) {
  for (int32_t i = 0; i < 10; ++i) {
    REQUIRE(harness->Step());
    if (Skips(*harness)) return;
  }
  FAIL("no step left the draft context out");
}

Request Continuation(uint64_t id, const Request& first, const Received& received) {
  Request request = ToyRequest(id, 1, 4);
  request.prompt = first.prompt;
  request.prompt.insert(request.prompt.end(), received.tokens.begin(), received.tokens.end());
  return request;
}

}  // namespace

TEST_CASE("decode steps leave the draft context out while drafting does not pay", "[sched]") {
  const RankInfo info = ToyRankInfo();
  SchedulerHarness harness(CostlyDrafts(info), {.info = info});
  REQUIRE(harness.Submit(ToyRequest(1, 6, 40)).ok());
  REQUIRE(harness.Step());
  CHECK_FALSE(Skips(harness));  // the prompt
  RunUntilSkipped(&harness);
  REQUIRE(harness.Submit(ToyRequest(2, 6, 40)).ok());
  REQUIRE(harness.Step());
  CHECK_FALSE(Skips(harness));  // a prompt again
  REQUIRE(harness.Step());
  CHECK(Skips(harness));
}

TEST_CASE("a fixed draft length and no drafter never leave the draft context out", "[sched]") {
  RankInfo info = ToyRankInfo();
  info.draft_length = GENERATE(0, 3);
  SchedulerHarness harness(ToyConfig(info), {.info = info});
  REQUIRE(harness.Submit(ToyRequest(1, 6, 30)).ok());
  while (harness.Step()) CHECK_FALSE(Skips(harness));
}

TEST_CASE("a sampled request among others keeps the draft context of all", "[sched]") {
  const RankInfo info = ToyRankInfo();
  SchedulerHarness harness(CostlyDrafts(info), {.info = info});
  REQUIRE(harness.Submit(ToyRequest(1, 6, 40)).ok());
  RunUntilSkipped(&harness);
  Request sampled = ToyRequest(2, 6, 8);
  sampled.sampling.temperature = 1.0F;
  REQUIRE(harness.Submit(sampled).ok());
  while (harness.received(2).finish == FinishReason::kNone) {
    REQUIRE(harness.Step());
    CHECK_FALSE(Skips(harness));
  }
  RunUntilSkipped(&harness);
}

TEST_CASE("a prefix without draft context serves greedy requests and no sampled ones", "[sched]") {
  const RankInfo info = ToyRankInfo();
  SchedulerHarness harness(CostlyDrafts(info), {.info = info});
  const Request first = ToyRequest(1, 9, 30);
  REQUIRE(harness.Submit(first).ok());
  harness.RunToEnd();
  const int64_t known = 9 + static_cast<int64_t>(harness.received(1).tokens.size());
  Request sampled = Continuation(2, first, harness.received(1));
  sampled.sampling.temperature = 1.0F;
  REQUIRE(harness.Submit(sampled).ok());
  harness.RunToEnd();
  const int64_t sampled_hits = harness.scheduler().stats().prefix_hits;
  CHECK(sampled_hits <= 12);  // the prompt and the steps before the context was given up
  REQUIRE(harness.Submit(Continuation(3, first, harness.received(1))).ok());
  harness.RunToEnd();
  CHECK(harness.scheduler().stats().prefix_hits - sampled_hits >= known / 4 * 4 - 4);
}

TEST_CASE("a sequence drafts only once a whole window of its context is there", "[sched]") {
  Sequence sequence(ToyRequest(1, 6, 30), 0, 30);
  sequence.TakeSlot(SlotId{0});
  CHECK(sequence.HasDraftWindow(5));
  sequence.CommitPrefill(6);
  CHECK(sequence.HasDraftWindow(5));
  sequence.SkipDraftRows(1);
  sequence.CommitDecode(0);
  sequence.SkipDraftRows(3);
  sequence.CommitDecode(2);
  CHECK(sequence.draft_gap().begin == 6);
  CHECK(sequence.draft_gap().end == 10);
  CHECK_FALSE(sequence.HasDraftWindow(5));
  sequence.CommitDecode(3);
  CHECK_FALSE(sequence.HasDraftWindow(5));
  sequence.CommitDecode(0);
  CHECK(sequence.HasDraftWindow(5));
}

TEST_CASE("what a hit lacks of the draft context is told to who takes it", "[sched][prefix]") {
  // Units of 4 positions, window blocks of 2, a window of 5.
  CacheManager cache(ToyRankInfo().cache, std::vector<int32_t>{16, 32}, 3, true);
  std::vector<PlanAppend> records(256);
  std::vector<int32_t> tokens(16);
  std::iota(tokens.begin(), tokens.end(), 1);
  AppendList list{records};
  cache.Reserve(SlotId{0}, 16, &list);
  cache.Commit(SlotId{0}, tokens, {9, 11});  // window blocks [8, 10) and [10, 12)
  CHECK(cache.Lookup(tokens, 1000, false).length == 16);
  CHECK(cache.Lookup(tokens, 1000, true).length == 8);
  CHECK(cache.Attach(SlotId{1}, cache.Lookup(tokens, 1000, true)) == 0);
  CHECK(cache.Attach(SlotId{2}, cache.Lookup(tokens, 1000, false)) == 12);
}

}  // namespace firesteel
