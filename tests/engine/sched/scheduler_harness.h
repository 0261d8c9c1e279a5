// Drives a Scheduler and a ScriptedRank on one thread and checks the invariants after every call.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/sched/invariants.h"
#include "engine/sched/scheduler.h"
#include "tests/support/catch.h"
#include "tests/support/scripted_rank.h"

namespace firesteel {

inline SchedulerConfig ToyConfig(const RankInfo& info) {
  SchedulerConfig config;
  config.cache = info.cache;
  config.num_blocks = info.num_blocks;
  config.limits = info.limits;
  config.draft_length = info.draft_length;
  config.vocab_size = info.model.vocab_size;
  config.max_model_len = info.model.max_model_len;
  config.max_batched_tokens = info.limits.max_rows;
  config.prefill_chunk = 16;
  config.max_queue = 64;
  return config;
}

inline Request ToyRequest(uint64_t id, int32_t prompt_length, int32_t max_tokens,
                          int32_t vocab_size = 50) {
  Request request;
  request.id = RequestId{id};
  for (int32_t i = 0; i < prompt_length; ++i) {
    request.prompt.push_back(static_cast<int32_t>((id * 7 + static_cast<uint64_t>(i) * 3) %
                                                  static_cast<uint64_t>(vocab_size)));
  }
  request.sampling.temperature = 0.0F;
  request.sampling.seed = id;
  request.sampling.max_tokens = max_tokens;
  return request;
}

// What one request got.
struct Received {
  std::vector<int32_t> tokens;
  std::vector<TokenEvent> events;
  FinishReason finish = FinishReason::kNone;
};

class SchedulerHarness {
 public:
  SchedulerHarness(const SchedulerConfig& config, ScriptedRankOptions rank)
      : scheduler_(config), rank_(std::move(rank)), plan_(config.limits) {
    results_.resize(static_cast<size_t>(config.limits.max_sequences));
    logprobs_.resize(static_cast<size_t>(config.limits.max_logit_rows));
  }

  Scheduler& scheduler() { return scheduler_; }
  const StepPlan& plan() const { return plan_; }
  const Received& received(uint64_t id) { return received_[id]; }
  const std::map<uint64_t, Received>& all_received() const { return received_; }

  Status Submit(Request request) {
    const Status status = scheduler_.Submit(std::move(request));
    Check();
    return status;
  }

  void Abort(uint64_t id) {
    scheduler_.Abort(RequestId{id}, &events_);
    Collect();
  }

  bool Plan() {
    const bool planned = scheduler_.Plan(&plan_);
    Check();
    return planned;
  }

  void Finish() {
    const Status ran = rank_.RunStep(plan_, results_, logprobs_);
    INFO(ran.ToString());
    REQUIRE(ran.ok());
    const auto count = static_cast<size_t>(plan_.header().num_sequences);
    const Status applied =
        scheduler_.OnResult(std::span(results_).first(count), logprobs_, &events_);
    INFO(applied.ToString());
    REQUIRE(applied.ok());
    Collect();
  }

  bool Step() {
    if (!Plan()) return false;
    Finish();
    return true;
  }

  void RunToEnd() {
    int32_t steps = 0;
    while (Step()) REQUIRE(++steps < 100000);
  }

  void Collect() {
    for (TokenEvent& event : events_) {
      Received& received = received_[event.id.value];
      INFO("request " << event.id.value);
      REQUIRE(received.finish == FinishReason::kNone);
      received.tokens.insert(received.tokens.end(), event.tokens.begin(), event.tokens.end());
      received.finish = event.finish;
      received.events.push_back(std::move(event));
    }
    events_.clear();
    Check();
  }

 private:
  void Check() {
    const Status status = CheckInvariants(scheduler_);
    INFO(status.ToString());
    REQUIRE(status.ok());
  }

  Scheduler scheduler_;
  ScriptedRank rank_;
  StepPlan plan_;
  std::vector<SequenceResult> results_;
  std::vector<LogprobRecord> logprobs_;
  std::vector<TokenEvent> events_;
  std::map<uint64_t, Received> received_;
};

}  // namespace firesteel
