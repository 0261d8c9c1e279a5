#include "engine/sched/scheduler.h"

#include <algorithm>

#include "tests/engine/sched/scheduler_harness.h"

namespace firesteel {
namespace {

ToyOutput Expected(const Request& request, const RankInfo& info) {
  return ToyContinuation(request, info.model.vocab_size, info.model.max_model_len);
}

ScriptedRankOptions PerfectDrafts(const RankInfo& info) {
  return {.info = info, .draft_accuracy = 1.0};
}

}  // namespace

TEST_CASE("the first token comes from the prompt and is not a round", "[sched][scheduler]") {
  const RankInfo info = ToyRankInfo();
  SchedulerHarness harness(ToyConfig(info), PerfectDrafts(info));
  REQUIRE(harness.Submit(ToyRequest(1, 6, 10)).ok());
  REQUIRE(harness.Step());
  REQUIRE(harness.received(1).events.size() == 1);
  const TokenEvent& first = harness.received(1).events[0];
  CHECK(first.tokens.size() == 1);
  CHECK_FALSE(first.is_round);
  CHECK(first.drafted == 0);
  REQUIRE(harness.Step());
  const TokenEvent& round = harness.received(1).events[1];
  CHECK(round.is_round);
  CHECK(round.drafted == 3);
  CHECK(round.accepted == 3);
  CHECK(round.tokens.size() == 4);
}

TEST_CASE("a stop token inside an accepted block ends the output at it", "[sched][scheduler]") {
  const RankInfo info = ToyRankInfo();
  Request request = ToyRequest(3, 6, 20);
  // Tokens 1..4 are one block of accepted drafts and the bonus token; stop at its second.
  const std::vector<int32_t> plain = Expected(request, info).tokens;
  REQUIRE(std::find(plain.begin(), plain.begin() + 2, plain[2]) == plain.begin() + 2);
  request.stop_tokens = {plain[2]};
  SchedulerHarness harness(ToyConfig(info), PerfectDrafts(info));
  REQUIRE(harness.Submit(request).ok());
  harness.RunToEnd();
  const Received& received = harness.received(3);
  CHECK(received.tokens == std::vector<int32_t>(plain.begin(), plain.begin() + 3));
  CHECK(received.finish == FinishReason::kStop);
  REQUIRE(received.events.size() == 2);
  CHECK(received.events[1].drafted == 3);
  CHECK(received.events[1].accepted == 2);
  CHECK(harness.scheduler().stats().accepted_tokens == 2);
  CHECK(harness.scheduler().stats().generation_tokens == 3);
}

TEST_CASE("max_tokens inside a block cuts the tokens and the accepted count",
          "[sched][scheduler]") {
  const RankInfo info = ToyRankInfo();
  SchedulerHarness harness(ToyConfig(info), PerfectDrafts(info));
  // 1 token of the prompt step, 4 of the first round, 2 of 3 in the last one.
  REQUIRE(harness.Submit(ToyRequest(1, 6, 7)).ok());
  harness.RunToEnd();
  const Received& received = harness.received(1);
  CHECK(received.tokens.size() == 7);
  CHECK(received.finish == FinishReason::kLength);
  REQUIRE(received.events.size() == 3);
  CHECK(received.events[2].drafted == 2);
  CHECK(received.events[2].accepted == 2);
  CHECK(received.events[2].tokens.size() == 2);
}

TEST_CASE("the output ends with kLength at the model's length", "[sched][scheduler]") {
  const RankInfo info = ToyRankInfo();
  SchedulerHarness harness(ToyConfig(info), PerfectDrafts(info));
  const int32_t prompt_length = GENERATE(58, 62, 63);
  REQUIRE(harness.Submit(ToyRequest(1, prompt_length, 1000)).ok());
  harness.RunToEnd();
  CHECK(static_cast<int32_t>(harness.received(1).tokens.size()) == 64 - prompt_length);
  CHECK(harness.received(1).finish == FinishReason::kLength);
}

TEST_CASE("prefill chunks of any size give the same tokens", "[sched][scheduler]") {
  const RankInfo info = ToyRankInfo();
  SchedulerConfig config = ToyConfig(info);
  config.prefill_chunk = GENERATE(1, 16, 48);
  SchedulerHarness harness(config, {.info = info});
  std::vector<Request> requests;
  for (uint64_t id = 1; id <= 6; ++id) {
    requests.push_back(ToyRequest(id, static_cast<int32_t>(5 + id * 6), 12));
    REQUIRE(harness.Submit(requests.back()).ok());
  }
  harness.RunToEnd();
  for (const Request& request : requests) {
    CHECK(harness.received(request.id.value).tokens == Expected(request, info).tokens);
  }
}

TEST_CASE("one step mixes verify blocks and prefill chunks", "[sched][scheduler]") {
  const RankInfo info = ToyRankInfo();
  SchedulerHarness harness(ToyConfig(info), PerfectDrafts(info));
  REQUIRE(harness.Submit(ToyRequest(1, 4, 20)).ok());
  REQUIRE(harness.Step());
  REQUIRE(harness.Submit(ToyRequest(2, 30, 4)).ok());
  REQUIRE(harness.Plan());
  REQUIRE(harness.plan().header().num_sequences == 2);
  CHECK(harness.plan().sequences()[0].num_drafts == 3);
  CHECK(harness.plan().sequences()[1].num_drafts == -1);
  CHECK(harness.plan().sequences()[1].num_rows == 16);
  CHECK_FALSE(harness.plan().shape().captured);
  harness.Finish();
}

TEST_CASE("without a drafter every round is one row and proposes nothing", "[sched][scheduler]") {
  RankInfo info = ToyRankInfo();
  info.draft_length = 0;
  SchedulerHarness harness(ToyConfig(info), {.info = info});
  const Request request = ToyRequest(1, 5, 9);
  REQUIRE(harness.Submit(request).ok());
  while (harness.Plan()) {
    CHECK(harness.plan().sequences()[0].propose == 0);
    CHECK(harness.plan().sequences()[0].num_drafts <= 0);
    harness.Finish();
  }
  CHECK(harness.received(1).tokens == Expected(request, info).tokens);
  CHECK(harness.scheduler().stats().rounds == 0);
}

TEST_CASE("a preempted sequence continues exactly where it was", "[sched][scheduler]") {
  RankInfo info = ToyRankInfo();
  info.num_blocks = {14, 80};  // 56 context positions for two requests that grow to 44 each
  SchedulerHarness harness(ToyConfig(info), {.info = info});
  std::vector<Request> requests = {ToyRequest(1, 8, 32), ToyRequest(2, 8, 32)};
  for (const Request& request : requests) REQUIRE(harness.Submit(request).ok());
  harness.RunToEnd();
  CHECK(harness.scheduler().stats().preemptions > 0);
  CHECK(harness.scheduler().stats().prompt_tokens == 16);
  for (const Request& request : requests) {
    CHECK(harness.received(request.id.value).tokens == Expected(request, info).tokens);
  }
}

TEST_CASE("the youngest sequence is the one that is preempted", "[sched][scheduler]") {
  RankInfo info = ToyRankInfo();
  info.num_blocks = {14, 80};
  SchedulerHarness harness(ToyConfig(info), {.info = info});
  REQUIRE(harness.Submit(ToyRequest(1, 8, 32)).ok());
  REQUIRE(harness.Submit(ToyRequest(2, 8, 32)).ok());
  while (harness.scheduler().stats().preemptions == 0) REQUIRE(harness.Step());
  CHECK(harness.scheduler().table().Find(RequestId{1}) != nullptr);
  REQUIRE(harness.scheduler().queue().size() == 1);
  CHECK(harness.scheduler().queue().front().id() == RequestId{2});
}

TEST_CASE("the token after a resume is not a round", "[sched][scheduler]") {
  RankInfo info = ToyRankInfo();
  info.num_blocks = {14, 80};
  SchedulerHarness harness(ToyConfig(info), PerfectDrafts(info));
  REQUIRE(harness.Submit(ToyRequest(1, 8, 32)).ok());
  REQUIRE(harness.Submit(ToyRequest(2, 8, 32)).ok());
  harness.RunToEnd();
  int32_t plain_events = 0;
  for (const TokenEvent& event : harness.received(2).events) {
    if (event.is_round) continue;
    ++plain_events;
    CHECK(event.accepted == 0);
    CHECK(event.tokens.size() == 1);
  }
  CHECK(plain_events >= 2);
}

TEST_CASE("the oldest prefill runs when the verify block that took all rows finds no blocks",
          "[sched][scheduler]") {
  RankInfo info = ToyRankInfo();
  info.num_blocks = {15, 80};
  SchedulerConfig config = ToyConfig(info);
  config.max_batched_tokens =
      4;  // one verify block, so the long prompt waits while request 2 decodes
  config.prefill_chunk = 2;
  SchedulerHarness harness(config, PerfectDrafts(info));
  const std::vector<Request> requests = {ToyRequest(1, 40, 8), ToyRequest(2, 4, 48)};
  for (const Request& request : requests) REQUIRE(harness.Submit(request).ok());
  harness.RunToEnd();
  for (const Request& request : requests) {
    CHECK(harness.received(request.id.value).tokens == Expected(request, info).tokens);
  }
}

TEST_CASE("an aborted request in flight takes no place in the queue", "[sched][scheduler]") {
  RankInfo info = ToyRankInfo();
  info.limits.max_sequences = 1;
  SchedulerConfig config = ToyConfig(info);
  config.max_queue = 0;
  SchedulerHarness harness(config, {.info = info});
  REQUIRE(harness.Submit(ToyRequest(1, 6, 20)).ok());
  REQUIRE(harness.Plan());
  harness.Abort(1);
  CHECK(harness.Submit(ToyRequest(2, 6, 20)).ok());
  CHECK(harness.scheduler().table().Find(RequestId{1}) == nullptr);
  harness.Finish();
  harness.RunToEnd();
  CHECK(harness.received(2).finish == FinishReason::kLength);
}

TEST_CASE("an abort in flight frees the blocks only when the step is done", "[sched][scheduler]") {
  const RankInfo info = ToyRankInfo();
  SchedulerHarness harness(ToyConfig(info), {.info = info});
  REQUIRE(harness.Submit(ToyRequest(1, 6, 20)).ok());
  REQUIRE(harness.Step());
  REQUIRE(harness.Plan());
  harness.Abort(1);
  CHECK(harness.received(1).finish == FinishReason::kAborted);
  CHECK(harness.scheduler().stats().blocks_free < harness.scheduler().stats().blocks_total);
  harness.Finish();
  CHECK(harness.received(1).tokens.size() == 1);
  CHECK(harness.scheduler().stats().blocks_free == harness.scheduler().stats().blocks_total);
  CHECK_FALSE(harness.Plan());
}

TEST_CASE("a queued request is aborted at once", "[sched][scheduler]") {
  RankInfo info = ToyRankInfo();
  info.limits.max_sequences = 1;
  SchedulerHarness harness(ToyConfig(info), {.info = info});
  REQUIRE(harness.Submit(ToyRequest(1, 6, 20)).ok());
  REQUIRE(harness.Submit(ToyRequest(2, 6, 20)).ok());
  REQUIRE(harness.Step());
  harness.Abort(2);
  CHECK(harness.received(2).finish == FinishReason::kAborted);
  CHECK(harness.scheduler().stats().requests_waiting == 0);
}

TEST_CASE("ending everything gives each live request one error event", "[sched][scheduler]") {
  RankInfo info = ToyRankInfo();
  info.limits.max_sequences = 2;
  Scheduler scheduler(ToyConfig(info));
  StepPlan plan(info.limits);
  std::vector<TokenEvent> events;
  for (uint64_t id = 1; id <= 3; ++id) REQUIRE(scheduler.Submit(ToyRequest(id, 6, 20)).ok());
  REQUIRE(scheduler.Plan(&plan));
  scheduler.AbandonStep();
  scheduler.EndAll(FinishReason::kError, Internal("device lost"), &events);
  REQUIRE(events.size() == 3);
  for (const TokenEvent& event : events) {
    CHECK(event.finish == FinishReason::kError);
    CHECK(event.error.message() == "device lost");
  }
  CHECK(CheckInvariants(scheduler).ok());
  CHECK(scheduler.stats().blocks_free == scheduler.stats().blocks_total);
}

TEST_CASE("a result for another slot is reported as an error", "[sched][scheduler]") {
  const RankInfo info = ToyRankInfo();
  Scheduler scheduler(ToyConfig(info));
  StepPlan plan(info.limits);
  std::vector<TokenEvent> events;
  REQUIRE(scheduler.Submit(ToyRequest(1, 6, 20)).ok());
  REQUIRE(scheduler.Plan(&plan));
  const std::vector<SequenceResult> results = {{.slot = 3, .num_tokens = 1}};
  CHECK(scheduler.OnResult(results, {}, &events).code() == StatusCode::kInternal);
  CHECK(events.empty());
}

TEST_CASE("accepted positions are counted up to the last accepted draft", "[sched][scheduler]") {
  const RankInfo info = ToyRankInfo();
  SchedulerHarness harness(ToyConfig(info), PerfectDrafts(info));
  REQUIRE(harness.Submit(ToyRequest(1, 6, 7)).ok());  // rounds of 3 and 2 accepted drafts
  harness.RunToEnd();
  const EngineStats stats = harness.scheduler().stats();
  CHECK(stats.rounds == 2);
  CHECK(stats.drafted_tokens == 5);
  CHECK(stats.accepted_at_position[0] == 2);
  CHECK(stats.accepted_at_position[1] == 2);
  CHECK(stats.accepted_at_position[2] == 1);
}

TEST_CASE("a short request does not wait for the end of a long prompt", "[sched][scheduler]") {
  const RankInfo info = ToyRankInfo();
  SchedulerConfig config = ToyConfig(info);
  config.prefill_chunk = 4;
  config.max_batched_tokens = 12;
  SchedulerHarness harness(config, {.info = info});
  REQUIRE(harness.Submit(ToyRequest(1, 60, 2)).ok());
  REQUIRE(harness.Submit(ToyRequest(2, 2, 2)).ok());
  while (harness.received(2).finish == FinishReason::kNone) REQUIRE(harness.Step());
  CHECK(harness.received(1).tokens.empty());
}

}  // namespace firesteel
