// After warm-up a step allocates nothing: every allocation of the process is counted while steps run.
#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/exec/rank_state.h"
#include "engine/exec/step_timer.h"
#include "tests/support/catch.h"
#include "tests/support/engine_runner.h"

namespace {

std::atomic<int64_t> g_allocations{0};

void* CountedAllocation(std::size_t bytes) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  void* data = std::malloc(bytes == 0 ? 1 : bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

void* operator new(std::size_t bytes) { return CountedAllocation(bytes); }
void* operator new[](std::size_t bytes) { return CountedAllocation(bytes); }
// All forms or none: memory of one that is not replaced must not reach a delete that is.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return CountedAllocation(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return CountedAllocation(bytes);
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t) noexcept { std::free(data); }
void operator delete(void* data, const std::nothrow_t&) noexcept { std::free(data); }
void operator delete[](void* data, const std::nothrow_t&) noexcept { std::free(data); }

namespace firesteel {
namespace {

// Allocations of `repeats` decode steps, the timer's own bookkeeping included.
int64_t AllocationsOf(StepTimer& timer, int32_t repeats) {
  const int64_t before = g_allocations.load();
  REQUIRE(timer.Time(3, 5, repeats).ok());
  return g_allocations.load() - before;
}

TEST_CASE("a decode step allocates nothing after warm-up, replayed or eager", "[allocation]") {
  for (const bool graphs : {true, false}) {
    INFO("graphs " << graphs);
    EngineOptions options = DemoEngineOptions(4);
    options.graphs = graphs;
    Result<std::unique_ptr<RankState>> state = RankState::Create(options);
    REQUIRE(state.ok());
    StepTimer timer(**state, 64);
    REQUIRE(timer.Time(3, 5, 4).ok());
    // The timer allocates its list of times once, however long: any difference is the steps' own.
    const int64_t with_few = AllocationsOf(timer, 5);
    const int64_t with_many = AllocationsOf(timer, 8);
    CHECK(with_few == with_many);
  }
}

}  // namespace
}  // namespace firesteel
