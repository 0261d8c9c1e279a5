// The logits behind a prefix hit, target and draft, are those of a cold run: their bits, not only the tokens.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/exec/rank_state.h"
#include "engine/sched/scheduler.h"
#include "tests/support/catch.h"
#include "tests/support/device_memory.h"
#include "tests/support/engine_runner.h"

namespace firesteel {
namespace {

// What the steps of one request left in the logit buffers, in order.
struct Log {
  std::vector<int32_t> tokens;
  std::vector<float> logits;        // every verified row
  std::vector<float> draft_logits;  // every proposed block, before the Markov bias
  bool operator==(const Log&) const = default;
};

// A scheduler and a rank on one thread.
class LoggedEngine {
 public:
  explicit LoggedEngine(const EngineOptions& options) {
    Result<std::unique_ptr<RankState>> state = RankState::Create(options);
    FIRESTEEL_CHECK(state.ok(), state.status().ToString());
    state_ = std::move(state).value();
    const RankInfo& info = state_->info();
    config_.cache = info.cache;
    config_.num_blocks = info.num_blocks;
    config_.limits = info.limits;
    config_.draft_length = info.draft_length;
    config_.vocab_size = info.model.vocab_size;
    config_.max_model_len = info.model.max_model_len;
    config_.max_batched_tokens = options.max_batched_tokens;
    config_.prefill_chunk = options.prefill_chunk;
    config_.max_queue = 16;
    config_.graphs = options.graphs;
    scheduler_ = std::make_unique<Scheduler>(config_);
    logits_ = Buffer("target.logits");
    draft_logits_ = Buffer("draft.base_logits");
  }

  Scheduler& scheduler() { return *scheduler_; }

  std::vector<Log> Run(const std::vector<RunRequest>& requests) {
    for (size_t i = 0; i < requests.size(); ++i) {
      Request request;
      request.id = RequestId{i + 1};
      request.prompt = requests[i].prompt;
      request.sampling = requests[i].sampling;
      const Status status = scheduler_->Submit(std::move(request));
      FIRESTEEL_CHECK(status.ok(), status.ToString());
    }
    std::map<uint64_t, Log> logs;
    StepPlan plan(config_.limits);
    std::vector<SequenceResult> results(static_cast<size_t>(config_.limits.max_sequences));
    std::vector<TokenEvent> events;
    while (scheduler_->Plan(&plan)) {
      const Status ran = state_->RunStep(plan, results);
      FIRESTEEL_CHECK(ran.ok(), ran.ToString());
      Record(plan, &logs);
      const auto count = static_cast<size_t>(plan.header().num_sequences);
      const Status applied = scheduler_->OnResult(std::span(results).first(count), {}, &events);
      FIRESTEEL_CHECK(applied.ok(), applied.ToString());
    }
    for (const TokenEvent& e : events) {
      std::vector<int32_t>& tokens = logs[e.id.value].tokens;
      tokens.insert(tokens.end(), e.tokens.begin(), e.tokens.end());
    }
    std::vector<Log> ordered;
    for (auto& [id, log] : logs) ordered.push_back(std::move(log));
    return ordered;
  }

 private:
  const float* Buffer(const std::string& name) const {
    for (const DeviceArena::Buffer& buffer : state_->arena().buffers()) {
      if (buffer.name == name) return static_cast<const float*>(buffer.data);
    }
    FIRESTEEL_CHECK(false, "the arena has no buffer " + name);
    return nullptr;
  }

  void Append(const float* device, int64_t count, std::vector<float>* to) const {
    const std::vector<float> values = Download(state_->device(), device, count);
    to->insert(to->end(), values.begin(), values.end());
  }

  void Record(const StepPlan& plan, std::map<uint64_t, Log>* logs) const {
    const int64_t vocab = config_.vocab_size;
    const int64_t block = vocab * state_->drafter().spec().block_rows;
    const float* draft = draft_logits_;
    for (int32_t i = 0; i < plan.header().num_sequences; ++i) {
      const PlanSequence& s = plan.sequences()[static_cast<size_t>(i)];
      Log& log = (*logs)[scheduler_->table().at(SlotId{s.slot})->id().value];
      if (s.num_logit_rows > 0) {
        Append(logits_ + s.first_logit_row * vocab, s.num_logit_rows * vocab, &log.logits);
      }
      if (s.propose == 0) continue;
      Append(draft, block, &log.draft_logits);
      draft += block;
    }
  }

  std::unique_ptr<RankState> state_;
  SchedulerConfig config_;
  std::unique_ptr<Scheduler> scheduler_;
  const float* logits_ = nullptr;
  const float* draft_logits_ = nullptr;
};

TEST_CASE("every logit behind a prefix hit has the bits of a cold run", "[prefix]") {
  EngineOptions options = DemoEngineOptions(3);
  options.prefill_chunk = 1024;
  options.max_batched_tokens = 2048;
  options.cache_dtype = GENERATE(CacheDtype::kFp32, CacheDtype::kFp8);
  options.activations = DefaultActivationDtype(options.device);
  std::vector<RunRequest> requests;
  for (const GreedyCase& c : ReadGreedyCases("greedy_long.json", 10)) {
    if (requests.size() == 3) break;
    requests.push_back(GreedyRequest(c.prompt, 10));
  }
  LoggedEngine engine(options);
  const std::vector<Log> cold = engine.Run(requests);
  REQUIRE(engine.scheduler().stats().prefix_hits == 0);
  // In other slots than before: nothing that belongs to a slot can help.
  std::vector<RunRequest> turned = requests;
  std::rotate(turned.begin(), turned.begin() + 1, turned.end());
  std::vector<Log> hit = engine.Run(turned);
  std::rotate(hit.begin(), hit.end() - 1, hit.end());
  REQUIRE(engine.scheduler().stats().prefix_hits == 3 * 3 * 128);
  REQUIRE(cold.size() == 3);
  for (size_t i = 0; i < cold.size(); ++i) {
    INFO("request " << i);
    CHECK_FALSE(cold[i].draft_logits.empty());
    CHECK((cold[i] == hit[i]));
  }
}

}  // namespace
}  // namespace firesteel
