#include <atomic>
#include <map>
#include <thread>

#include "engine/runtime/engine_factory.h"
#include "tests/engine/sched/scheduler_harness.h"

namespace firesteel {
namespace {

EngineOptions ToyOptions() {
  EngineOptions options;
  options.max_batched_tokens = 48;
  options.prefill_chunk = 16;
  return options;
}

std::unique_ptr<Engine> StartEngine(ScriptedRankOptions rank,
                                    const EngineOptions& options = ToyOptions()) {
  Result<std::unique_ptr<Engine>> engine = CreateEngineOn(
      [rank]() -> Result<std::unique_ptr<RankExecutor>> {
        return std::unique_ptr<RankExecutor>(std::make_unique<ScriptedRank>(rank));
      },
      options);
  INFO(engine.status().ToString());
  REQUIRE(engine.ok());
  return std::move(engine).value();
}

// Collects events until `count` requests have had their last one, or the engine says that it is the
// end.
std::map<uint64_t, Received> Collect(Engine* engine, size_t count) {
  std::map<uint64_t, Received> received;
  size_t finished = 0;
  bool open = true;
  while (open && finished < count) {
    std::vector<TokenEvent> events;
    open = engine->WaitEvents(INT64_MAX, &events);
    for (TokenEvent& event : events) {
      Received& r = received[event.id.value];
      REQUIRE(r.finish == FinishReason::kNone);
      r.tokens.insert(r.tokens.end(), event.tokens.begin(), event.tokens.end());
      r.finish = event.finish;
      if (event.finish != FinishReason::kNone) ++finished;
      r.events.push_back(std::move(event));
    }
  }
  return received;
}

// Holds the rank thread inside a step until the test lets it go.
class StepGate {
 public:
  void EnterAndWait() {
    entered_.store(true);
    entered_.notify_all();
    open_.wait(false);
  }
  void WaitEntered() { entered_.wait(false); }
  void Open() {
    open_.store(true);
    open_.notify_all();
  }

 private:
  std::atomic<bool> entered_{false};
  std::atomic<bool> open_{false};
};

}  // namespace

TEST_CASE("requests from several threads get the plain greedy continuation", "[runtime][engine]") {
  const RankInfo info = ToyRankInfo();
  const std::unique_ptr<Engine> engine = StartEngine({});
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kEach = 20;
  std::atomic<int32_t> refused{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < kEach; ++i) {
        const uint64_t id = t * kEach + i;
        if (!engine->Submit(ToyRequest(id, static_cast<int32_t>(1 + id % 40), 10)).ok()) ++refused;
      }
    });
  }
  std::map<uint64_t, Received> received = Collect(engine.get(), kThreads * kEach);
  for (std::thread& thread : threads) thread.join();
  CHECK(refused == 0);
  for (uint64_t id = 0; id < kThreads * kEach; ++id) {
    INFO("request " << id);
    const Request request = ToyRequest(id, static_cast<int32_t>(1 + id % 40), 10);
    CHECK(received[id].tokens ==
          ToyContinuation(request, info.model.vocab_size, info.model.max_model_len).tokens);
    CHECK(received[id].finish == FinishReason::kLength);
  }
}

TEST_CASE("the stats say what was emitted and return to idle", "[runtime][engine]") {
  const std::unique_ptr<Engine> engine = StartEngine({});
  REQUIRE(engine->Submit(ToyRequest(1, 6, 10)).ok());
  Collect(engine.get(), 1);
  const EngineStats stats = engine->stats();
  CHECK(stats.prompt_tokens == 6);
  CHECK(stats.generation_tokens == 10);
  CHECK(stats.requests_running == 0);
  CHECK(stats.requests_waiting == 0);
  CHECK(stats.blocks_free == stats.blocks_total);
  CHECK(stats.healthy);
}

TEST_CASE("an executor that cannot start gives its error", "[runtime][engine]") {
  const Result<std::unique_ptr<Engine>> engine = CreateEngineOn(
      []() -> Result<std::unique_ptr<RankExecutor>> { return NotFound("no such model"); },
      ToyOptions());
  REQUIRE_FALSE(engine.ok());
  CHECK(engine.status().code() == StatusCode::kNotFound);
}

TEST_CASE("options that cannot run one verify block are refused at start", "[runtime][engine]") {
  EngineOptions options = ToyOptions();
  options.max_batched_tokens = 2;
  const Result<std::unique_ptr<Engine>> engine = CreateEngineOn(
      []() -> Result<std::unique_ptr<RankExecutor>> {
        return std::unique_ptr<RankExecutor>(std::make_unique<ScriptedRank>(ScriptedRankOptions{}));
      },
      options);
  CHECK(engine.status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("an abort while a step is in flight ends the request at once", "[runtime][engine]") {
  StepGate gate;
  ScriptedRankOptions rank;
  rank.before_step = [&gate](const StepPlan&) {
    gate.EnterAndWait();
    return Status::Ok();
  };
  const std::unique_ptr<Engine> engine = StartEngine(rank);
  REQUIRE(engine->Submit(ToyRequest(1, 6, 20)).ok());
  gate.WaitEntered();
  engine->Abort(RequestId{1});
  std::map<uint64_t, Received> received = Collect(engine.get(), 1);
  CHECK(received[1].finish == FinishReason::kAborted);
  CHECK(received[1].tokens.empty());
  const EngineStats held = engine->stats();
  CHECK(held.blocks_free < held.blocks_total);
  gate.Open();
  // The next request finishes, so the first step's blocks are free by then.
  REQUIRE(engine->Submit(ToyRequest(2, 6, 3)).ok());
  Collect(engine.get(), 1);
  const EngineStats stats = engine->stats();
  CHECK(stats.blocks_free == stats.blocks_total);
}

TEST_CASE("an id aborted in flight can be used and aborted again before the step is done",
          "[runtime][engine]") {
  StepGate gate;
  ScriptedRankOptions rank;
  rank.before_step = [&gate](const StepPlan&) {
    gate.EnterAndWait();
    return Status::Ok();
  };
  const std::unique_ptr<Engine> engine = StartEngine(rank);
  REQUIRE(engine->Submit(ToyRequest(1, 6, 20)).ok());
  gate.WaitEntered();
  for (int32_t i = 0; i < 2; ++i) {
    engine->Abort(RequestId{1});
    CHECK(Collect(engine.get(), 1)[1].finish == FinishReason::kAborted);
    REQUIRE(engine->Submit(ToyRequest(1, 6, 20)).ok());
  }
  gate.Open();
  CHECK(Collect(engine.get(), 1)[1].finish == FinishReason::kLength);
}

TEST_CASE("a device fault ends every stream once and refuses what comes later",
          "[runtime][engine]") {
  StepGate gate;
  ScriptedRankOptions rank;
  rank.before_step = [&gate](const StepPlan& plan) {
    if (plan.header().step < 2) return Status::Ok();
    gate.EnterAndWait();
    return Internal("device lost");
  };
  const std::unique_ptr<Engine> engine = StartEngine(rank);
  for (uint64_t id = 1; id <= 7; ++id) REQUIRE(engine->Submit(ToyRequest(id, 6, 30)).ok());
  gate.WaitEntered();
  REQUIRE(engine->Submit(ToyRequest(8, 6, 30)).ok());  // still on its way to the scheduler
  gate.Open();
  std::map<uint64_t, Received> received = Collect(engine.get(), 8);
  REQUIRE(received.size() == 8);
  for (const auto& [id, r] : received) {
    INFO("request " << id);
    CHECK(r.finish == FinishReason::kError);
    CHECK(r.events.back().error.message() == "device lost");
  }
  CHECK(engine->Submit(ToyRequest(9, 6, 30)).code() == StatusCode::kUnavailable);
  std::vector<TokenEvent> events;
  CHECK_FALSE(engine->WaitEvents(INT64_MAX, &events));
  CHECK(events.empty());
  CHECK_FALSE(engine->stats().healthy);
  CHECK(engine->stats().requests_running == 0);
}

TEST_CASE("a full queue refuses at once and takes again when one request has ended",
          "[runtime][engine]") {
  StepGate gate;
  ScriptedRankOptions rank;
  rank.before_step = [&gate](const StepPlan&) {
    gate.EnterAndWait();
    return Status::Ok();
  };
  EngineOptions options = ToyOptions();
  options.max_queue = 1;
  const std::unique_ptr<Engine> engine = StartEngine(rank, options);
  for (uint64_t id = 1; id <= 5; ++id) REQUIRE(engine->Submit(ToyRequest(id, 6, 3)).ok());
  CHECK(engine->Submit(ToyRequest(6, 6, 3)).code() == StatusCode::kResourceExhausted);
  gate.Open();
  Collect(engine.get(), 5);
  CHECK(engine->Submit(ToyRequest(6, 6, 3)).ok());
}

TEST_CASE("a drain refuses new requests, finishes those taken and then says that it is the end",
          "[runtime][engine]") {
  StepGate gate;
  ScriptedRankOptions rank;
  rank.before_step = [&gate](const StepPlan&) {
    gate.EnterAndWait();
    return Status::Ok();
  };
  const std::unique_ptr<Engine> engine = StartEngine(rank);
  for (uint64_t id = 1; id <= 6; ++id) REQUIRE(engine->Submit(ToyRequest(id, 6, 9)).ok());
  engine->BeginDrain();
  engine->BeginDrain();
  CHECK(engine->Submit(ToyRequest(7, 6, 9)).code() == StatusCode::kUnavailable);
  gate.Open();
  std::map<uint64_t, Received> received = Collect(engine.get(), 100);  // returns at the end
  REQUIRE(received.size() == 6);
  for (const auto& [id, r] : received) CHECK(r.tokens.size() == 9);
}

TEST_CASE("an idle engine that drains is at its end", "[runtime][engine]") {
  const std::unique_ptr<Engine> engine = StartEngine({});
  engine->BeginDrain();
  std::vector<TokenEvent> events;
  CHECK_FALSE(engine->WaitEvents(INT64_MAX, &events));
}

TEST_CASE("an engine destroyed while requests run uses and ends its executor on one thread",
          "[runtime][engine]") {
  struct Trace {
    std::atomic<int64_t> steps{0};
    std::thread::id made;
    bool one_thread = true;
    bool destroyed = false;
  };
  class TracedRank final : public RankExecutor {
   public:
    explicit TracedRank(Trace* trace) : trace_(trace) { trace_->made = std::this_thread::get_id(); }
    ~TracedRank() override {
      Visit();
      trace_->destroyed = true;
    }
    const RankInfo& info() const override { return rank_.info(); }
    Status RunStep(const StepPlan& plan, std::span<SequenceResult> results,
                   std::span<LogprobRecord> logprobs) override {
      Visit();
      ++trace_->steps;
      trace_->steps.notify_all();
      return rank_.RunStep(plan, results, logprobs);
    }

   private:
    void Visit() {
      trace_->one_thread = trace_->one_thread && trace_->made == std::this_thread::get_id();
    }
    Trace* trace_;
    ScriptedRank rank_{ScriptedRankOptions{}};
  };
  Trace trace;
  Result<std::unique_ptr<Engine>> engine = CreateEngineOn(
      [&trace]() -> Result<std::unique_ptr<RankExecutor>> {
        return std::unique_ptr<RankExecutor>(std::make_unique<TracedRank>(&trace));
      },
      ToyOptions());
  REQUIRE(engine.ok());
  for (uint64_t id = 1; id <= 20; ++id) REQUIRE((*engine)->Submit(ToyRequest(id, 6, 50)).ok());
  trace.steps.wait(0);
  engine->reset();
  CHECK(trace.destroyed);
  CHECK(trace.one_thread);
  CHECK(trace.made != std::this_thread::get_id());
}

}  // namespace firesteel
