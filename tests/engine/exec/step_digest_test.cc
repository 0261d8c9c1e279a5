// The digest that guards replays sees every address a step captured.
#include "engine/exec/step_digest.h"

#include <memory>

#include "engine/exec/rank_state.h"
#include "kernels/core/arena.h"
#include "tests/support/catch.h"
#include "tests/support/engine_runner.h"

namespace firesteel {
namespace {

std::unique_ptr<RankState> MakeState() {
  Result<std::unique_ptr<RankState>> state = RankState::Create(DemoEngineOptions(2));
  REQUIRE(state.ok());
  return std::move(state).value();
}

TEST_CASE("a shape's digest stays the same from step to step and differs between shapes",
          "[exec]") {
  const std::unique_ptr<RankState> state = MakeState();
  const StepShape one{1, 6, 6, true};
  const StepShape two{2, 12, 12, true};
  CHECK(StepDigest(one, state->program()) == StepDigest(one, state->program()));
  CHECK(StepDigest(one, state->program()) != StepDigest(two, state->program()));
}

TEST_CASE("a step whose draft buffers moved has another digest", "[exec]") {
  const std::unique_ptr<RankState> state = MakeState();
  const StepShape shape{1, 6, 6, true};
  const uint64_t before = StepDigest(shape, state->program());
  DeviceArena elsewhere(state->device());
  TargetModel::Caches caches;
  caches.context_blocks = 8;
  caches.context_block_tokens = 128;
  caches.window_blocks = 16;
  caches.window_block_tokens = 64;
  caches.slots = 2;
  caches.positions = 512;
  caches.speculative_rows = 6;
  state->drafter().Bind(elsewhere, StepLimits{64, 2, 64}, caches);
  CHECK(StepDigest(shape, state->program()) != before);
}

}  // namespace
}  // namespace firesteel
