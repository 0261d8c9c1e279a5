// Random traffic against the toy model's plain greedy continuation, with fixed seeds.
#include <algorithm>
#include <random>

#include "kernels/core/math.h"
#include "tests/engine/sched/scheduler_harness.h"

namespace firesteel {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int32_t Roll(int32_t low, int32_t high) {
    return low + static_cast<int32_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(int32_t percent) { return Roll(1, 100) <= percent; }

 private:
  std::mt19937_64 engine_;
};

struct Scenario {
  ScriptedRankOptions rank;
  SchedulerConfig config;
};

Scenario RandomScenario(Dice* dice) {
  Scenario scenario;
  RankInfo& info = scenario.rank.info;
  info.draft_length = dice->Roll(0, 5);
  info.model.vocab_size = dice->Roll(5, 40);
  info.model.max_model_len = dice->Roll(10, 70);
  info.cache.lookahead_tokens = dice->Chance(25) ? 0 : dice->Roll(0, 6);
  info.cache.groups.clear();
  info.num_blocks.clear();
  info.limits.max_sequences = dice->Roll(1, 6);
  const int32_t num_groups = dice->Roll(1, 3);
  for (int32_t g = 0; g < num_groups; ++g) {
    CacheGroupSpec group;
    group.name = "g";
    group.name += std::to_string(g);
    // Mostly sizes with a small common multiple: a prefix is shared in units of it.
    group.block_tokens = dice->Chance(70) ? 1 << dice->Roll(0, 3) : dice->Roll(1, 9);
    group.retained_tokens = g == 0 ? 0 : dice->Roll(1, 12);
    // From barely one sequence to nearly all slots at full length.
    const int32_t one =
        CeilDiv(info.model.max_model_len + info.cache.lookahead_tokens, group.block_tokens);
    info.num_blocks.push_back(dice->Chance(60) ? one + dice->Roll(0, one)
                                               : one * info.limits.max_sequences);
    info.cache.groups.push_back(group);
  }
  info.limits.max_rows = info.draft_length + 1 + dice->Roll(0, 40);
  info.limits.max_logit_rows =
      info.limits.max_sequences * (info.draft_length + 1) + dice->Roll(0, 8);
  info.limits.max_appends = dice->Chance(70) ? 400 : 1;
  scenario.rank.draft_accuracy = dice->Roll(0, 4) * 0.25;
  scenario.rank.draft_seed = static_cast<uint64_t>(dice->Roll(1, 1000));
  scenario.config = ToyConfig(info);
  scenario.config.prefill_chunk = dice->Roll(1, 24);
  scenario.config.max_batched_tokens =
      info.draft_length + 1 + (dice->Chance(40) ? dice->Roll(0, 3) : dice->Roll(0, 40));
  scenario.config.graphs = dice->Chance(50);
  scenario.config.prefix_cache = dice->Chance(85);
  // Where room for block appends is scarce, it is the least that a config may have.
  while (!scenario.config.Validate().ok()) ++scenario.config.limits.max_appends;
  info.limits = scenario.config.limits;
  return scenario;
}

// Prompts that begin like earlier texts, at any length and sometimes into what was generated for them.
class RequestMaker {
 public:
  RequestMaker(Dice* dice, const RankInfo& info)
      : dice_(dice), info_(info), fresh_percent_(dice->Roll(10, 100)) {}

  Request Make(uint64_t id) {
    Request request;
    request.id = RequestId{id};
    const int32_t longest = info_.model.max_model_len - 1;
    if (!texts_.empty() && !dice_->Chance(fresh_percent_)) {
      const auto& text =
          texts_[static_cast<size_t>(dice_->Roll(0, static_cast<int32_t>(texts_.size()) - 1))];
      const int32_t most = Min(longest, static_cast<int32_t>(text.size()));
      const int32_t length = dice_->Chance(30) ? most : dice_->Roll(1, most);
      request.prompt.assign(text.begin(), text.begin() + length);
    }
    const int32_t shared = static_cast<int32_t>(request.prompt.size());
    const int32_t least = shared == 0 ? 1 : 0;
    const int32_t more = dice_->Roll(least, Min(longest - shared, dice_->Chance(50) ? 8 : longest));
    for (int32_t i = 0; i < more; ++i) {
      request.prompt.push_back(dice_->Roll(0, info_.model.vocab_size - 1));
    }
    if (dice_->Chance(60)) request.stop_tokens = {dice_->Roll(0, info_.model.vocab_size - 1)};
    request.sampling.ignore_eos = dice_->Chance(20);
    request.sampling.seed = static_cast<uint64_t>(dice_->Roll(0, 1 << 20));
    request.sampling.temperature = 0.0F;
    request.sampling.max_tokens = dice_->Roll(1, 50);
    if (dice_->Chance(15)) request.sampling.logprobs = 0;
    if (dice_->Chance(10)) request.sampling.prompt_logprobs = 0;
    texts_.push_back(request.prompt);
    const ToyOutput output =
        ToyContinuation(request, info_.model.vocab_size, info_.model.max_model_len);
    texts_.back().insert(texts_.back().end(), output.tokens.begin(), output.tokens.end());
    return request;
  }

 private:
  Dice* dice_;
  const RankInfo& info_;
  int32_t fresh_percent_;
  std::vector<std::vector<int32_t>> texts_;
};

struct Totals {
  int64_t preemptions = 0;
  int64_t aborted_in_flight = 0;
  int64_t stops_in_block = 0;
  int64_t completed = 0;
  int64_t prefix_hits = 0;
  int64_t resumed_hits = 0;  // scenarios with preemptions and hits
};

// One log-probability per output token and per prompt token but the first, each of the right token.
void CheckLogprobs(const Request& request, const Received& received) {
  std::vector<int32_t> prompt;
  for (const TokenEvent& event : received.events) {
    CHECK(event.logprobs.size() == (request.sampling.logprobs < 0 ? 0 : event.tokens.size()));
    for (size_t i = 0; i < event.logprobs.size(); ++i) {
      CHECK(event.logprobs[i].token == event.tokens[i]);
      CHECK(event.logprobs[i].logprob == -1.0F - static_cast<float>(event.tokens[i]));
    }
    if (event.prompt_logprobs.empty()) continue;
    CHECK(event.prompt_logprobs_start == static_cast<int32_t>(prompt.size()) + 1);
    for (const TokenLogprobs& scored : event.prompt_logprobs) {
      prompt.push_back(scored.token);
      CHECK(scored.logprob == -1.0F - static_cast<float>(scored.token));
    }
  }
  std::vector<int32_t> wanted(request.prompt.begin() + 1, request.prompt.end());
  if (request.sampling.prompt_logprobs < 0) wanted.clear();
  if (received.finish == FinishReason::kAborted) {
    wanted.resize(std::min(wanted.size(), prompt.size()));
  }
  CHECK(prompt == wanted);
}

void CheckOutputs(SchedulerHarness* harness, const std::map<uint64_t, Request>& requests,
                  const RankInfo& info, Totals* totals) {
  int64_t tokens = 0;
  int64_t accepted = 0;
  for (const auto& [id, request] : requests) {
    INFO("request " << id);
    const Received& received = harness->received(id);
    const ToyOutput expected =
        ToyContinuation(request, info.model.vocab_size, info.model.max_model_len);
    CheckLogprobs(request, received);
    tokens += static_cast<int64_t>(received.tokens.size());
    for (const TokenEvent& event : received.events) {
      accepted += event.accepted;
      CHECK(event.accepted <= static_cast<int32_t>(event.tokens.size()));
      CHECK(event.accepted <= event.drafted);
    }
    if (received.finish == FinishReason::kAborted) {
      REQUIRE(received.tokens.size() <= expected.tokens.size());
      CHECK(std::equal(received.tokens.begin(), received.tokens.end(), expected.tokens.begin()));
      continue;
    }
    ++totals->completed;
    CHECK(received.tokens == expected.tokens);
    CHECK(received.finish == expected.finish);
    const TokenEvent& last = received.events.back();
    if (last.finish == FinishReason::kStop &&
        last.accepted == static_cast<int32_t>(last.tokens.size())) {
      ++totals->stops_in_block;
    }
  }
  const EngineStats stats = harness->scheduler().stats();
  CHECK(stats.generation_tokens == tokens);
  CHECK(stats.accepted_tokens == accepted);
  CHECK(stats.requests_running == 0);
  CHECK(stats.requests_waiting == 0);
  CHECK(stats.blocks_free == stats.blocks_total);
  totals->preemptions += stats.preemptions;
  totals->prefix_hits += stats.prefix_hits;
  totals->resumed_hits += stats.preemptions > 0 && stats.prefix_hits > 0 ? 1 : 0;
  CHECK(stats.prefix_hits <= stats.prefix_queries);
  if (!harness->scheduler().config().prefix_cache) CHECK(stats.prefix_queries == 0);
}

void RunScenario(uint64_t seed, Totals* totals) {
  Dice dice(seed);
  const Scenario scenario = RandomScenario(&dice);
  const RankInfo& info = scenario.rank.info;
  SchedulerHarness harness(scenario.config, scenario.rank);
  std::map<uint64_t, Request> requests;
  RequestMaker maker(&dice, info);
  const uint64_t count = 30;
  uint64_t next_id = 1;
  const int32_t arrival_percent = dice.Roll(5, 90);
  const int32_t abort_percent = dice.Chance(50) ? 0 : dice.Roll(1, 10);
  while (true) {
    while (next_id <= count && dice.Chance(arrival_percent)) {
      const Request request = maker.Make(next_id);
      const Status status = harness.Submit(request);
      if (status.ok()) requests[next_id] = request;
      ++next_id;
    }
    const auto maybe_abort = [&] {
      if (!dice.Chance(abort_percent)) return false;
      const auto id = static_cast<uint64_t>(dice.Roll(1, static_cast<int32_t>(count)));
      const bool live = harness.scheduler().table().Find(RequestId{id}) != nullptr;
      harness.Abort(id);
      return live;
    };
    maybe_abort();
    if (harness.Plan()) {
      if (maybe_abort()) ++totals->aborted_in_flight;
      harness.Finish();
    } else if (next_id > count) {
      break;
    }
  }
  CheckOutputs(&harness, requests, info, totals);
}

}  // namespace

TEST_CASE("random traffic gets exactly the plain greedy continuation", "[sched][property]") {
  Totals totals;
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    INFO("scenario seed " << seed);
    RunScenario(seed, &totals);
  }
  // The scenarios must reach what they are there for.
  CHECK(totals.completed > 10000);
  CHECK(totals.preemptions > 400);
  CHECK(totals.aborted_in_flight > 100);
  CHECK(totals.stops_in_block > 500);
  CHECK(totals.prefix_hits > 20000);
  CHECK(totals.resumed_hits > 40);
}

}  // namespace firesteel
