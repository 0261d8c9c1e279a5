#include "engine/runtime/command_queue.h"

#include "tests/engine/sched/scheduler_harness.h"

namespace firesteel {
namespace {

struct Fixture {
  SchedulerConfig config = ToyConfig(ToyRankInfo());
  WakeSignal wake;
  CommandQueue queue{config, &wake};
};

}  // namespace

TEST_CASE("commands are taken in the order in which they came", "[runtime][commands]") {
  Fixture f;
  REQUIRE(f.queue.Submit(ToyRequest(1, 4, 4)).ok());
  f.queue.Abort(RequestId{1});
  REQUIRE(f.queue.Submit(ToyRequest(2, 4, 4)).ok());
  CHECK(f.queue.num_pending_submits() == 2);
  std::vector<EngineCommand> commands;
  f.queue.TakeAll(&commands);
  REQUIRE(commands.size() == 3);
  CHECK(commands[0].request.prompt.size() == 4);
  CHECK(commands[1].kind == EngineCommand::Kind::kAbort);
  CHECK(commands[2].id == RequestId{2});
  CHECK(f.queue.num_pending_submits() == 0);
}

TEST_CASE("an id that is live is refused until its last event", "[runtime][commands]") {
  Fixture f;
  REQUIRE(f.queue.Submit(ToyRequest(1, 4, 4)).ok());
  CHECK(f.queue.Submit(ToyRequest(1, 4, 4)).code() == StatusCode::kInvalidArgument);
  f.queue.Retire({{.id = RequestId{1}, .finish = FinishReason::kNone}});
  CHECK(f.queue.Submit(ToyRequest(1, 4, 4)).code() == StatusCode::kInvalidArgument);
  f.queue.Retire({{.id = RequestId{1}, .finish = FinishReason::kStop}});
  CHECK(f.queue.Submit(ToyRequest(1, 4, 4)).ok());
}

TEST_CASE("an abort of an unknown id leaves no command behind", "[runtime][commands]") {
  Fixture f;
  f.queue.Abort(RequestId{9});
  std::vector<EngineCommand> commands;
  f.queue.TakeAll(&commands);
  CHECK(commands.empty());
}

TEST_CASE("a draining queue is finished once nothing is live", "[runtime][commands]") {
  Fixture f;
  REQUIRE(f.queue.Submit(ToyRequest(1, 4, 4)).ok());
  f.queue.BeginDrain();
  CHECK(f.queue.Submit(ToyRequest(2, 4, 4)).code() == StatusCode::kUnavailable);
  CHECK_FALSE(f.queue.finished());
  f.queue.Retire({{.id = RequestId{1}, .finish = FinishReason::kLength}});
  CHECK(f.queue.finished());
}

}  // namespace firesteel
