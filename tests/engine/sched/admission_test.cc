#include "engine/sched/admission.h"

#include "tests/engine/sched/scheduler_harness.h"

namespace firesteel {
namespace {

bool Names(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("a prompt that leaves no output position is refused with both numbers",
          "[sched][admission]") {
  const SchedulerConfig config = ToyConfig(ToyRankInfo());
  CHECK(CheckRequest(config, ToyRequest(1, 63, 5)).ok());
  const Status status = CheckRequest(config, ToyRequest(1, 64, 5));
  REQUIRE(status.code() == StatusCode::kInvalidArgument);
  INFO(status.message());
  CHECK(Names(status, "64 tokens"));
  CHECK(Names(status, "at most 63"));
}

TEST_CASE("an empty prompt is refused", "[sched][admission]") {
  const SchedulerConfig config = ToyConfig(ToyRankInfo());
  CHECK(CheckRequest(config, ToyRequest(1, 0, 5)).code() == StatusCode::kInvalidArgument);
}

TEST_CASE("a prompt token outside the vocabulary is refused by place and value",
          "[sched][admission]") {
  const SchedulerConfig config = ToyConfig(ToyRankInfo());
  Request request = ToyRequest(1, 3, 5);
  request.prompt[2] = GENERATE(-1, 50);
  const Status status = CheckRequest(config, request);
  REQUIRE(status.code() == StatusCode::kInvalidArgument);
  CHECK(Names(status, "token 2 is " + std::to_string(request.prompt[2])));
}

TEST_CASE("tokens of sampling options outside the vocabulary are refused", "[sched][admission]") {
  const SchedulerConfig config = ToyConfig(ToyRankInfo());
  Request bias = ToyRequest(1, 3, 5);
  bias.sampling.logit_bias = {{50, 1.0F}};
  CHECK(Names(CheckRequest(config, bias), "logit_bias has token 50"));
  Request bad_words = ToyRequest(1, 3, 5);
  bad_words.sampling.bad_words = {{1, -1}};
  CHECK(Names(CheckRequest(config, bad_words), "bad_words has token -1"));
  Request stops = ToyRequest(1, 3, 5);
  stops.sampling.min_tokens = 2;
  stops.stop_tokens = {77};
  CHECK(Names(CheckRequest(config, stops), "stop_tokens has token 77"));
}

TEST_CASE("rules that may forbid the whole vocabulary are refused", "[sched][admission]") {
  const SchedulerConfig config = ToyConfig(ToyRankInfo());
  Request request = ToyRequest(1, 3, 5);
  for (int32_t t = 0; t < 49; ++t) request.sampling.bad_words.push_back({t});
  CHECK(CheckRequest(config, request).ok());
  request.sampling.min_tokens = 1;
  request.stop_tokens = {49};
  CHECK(Names(CheckRequest(config, request), "forbid 50 tokens"));
}

TEST_CASE("a config with fewer logit rows than its verify blocks need is refused",
          "[sched][admission]") {
  SchedulerConfig config = ToyConfig(ToyRankInfo());
  config.limits.max_logit_rows = 15;
  CHECK(Names(config.Validate(), "logit rows per step is 15, needs at least 16"));
}

TEST_CASE("a request that the pool could not hold even alone is refused", "[sched][admission]") {
  RankInfo info = ToyRankInfo();
  info.num_blocks = {6, 80};  // 24 context positions, 4 of them ahead
  const SchedulerConfig config = ToyConfig(info);
  CHECK(CheckRequest(config, ToyRequest(1, 10, 10)).ok());
  const Status status = CheckRequest(config, ToyRequest(1, 10, 11));
  REQUIRE(status.code() == StatusCode::kInvalidArgument);
  CHECK(Names(status, "context"));
}

TEST_CASE("the queue holds max_queue requests beyond the slots", "[sched][admission]") {
  RankInfo info = ToyRankInfo();
  info.limits.max_sequences = 2;
  SchedulerConfig config = ToyConfig(info);
  config.max_queue = 1;
  SchedulerHarness harness(config, {.info = info});
  for (uint64_t id = 1; id <= 3; ++id) REQUIRE(harness.Submit(ToyRequest(id, 4, 4)).ok());
  CHECK(harness.Submit(ToyRequest(4, 4, 4)).code() == StatusCode::kResourceExhausted);
  harness.RunToEnd();
  CHECK(harness.Submit(ToyRequest(4, 4, 4)).ok());
}

TEST_CASE("a config whose verify block exceeds a step's rows is refused", "[sched][admission]") {
  SchedulerConfig config = ToyConfig(ToyRankInfo());
  config.max_batched_tokens = 4;
  CHECK(config.Validate().ok());
  config.max_batched_tokens = 3;
  const Status status = config.Validate();
  REQUIRE(status.code() == StatusCode::kInvalidArgument);
  CHECK(Names(status, "max-batched-tokens is 3, needs at least 4"));
}

}  // namespace firesteel
