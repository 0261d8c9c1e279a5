// Sharing of prefixes as the cache manager and the scheduler do it.
#include <numeric>

#include "tests/engine/sched/scheduler_harness.h"

namespace firesteel {
namespace {

// Units of 4 positions, as in ToyRankInfo; the window keeps 5, so a hit needs three window blocks.
CacheSpec ToyCaches() { return ToyRankInfo().cache; }

std::vector<int32_t> Text(int32_t count, int32_t first = 1) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

struct Fixture {
  explicit Fixture(int32_t context = 16, int32_t window = 32)
      : cache(ToyCaches(), std::vector<int32_t>{context, window}, 3, true) {}

  // Computes `tokens` in one step and indexes them; continues what the slot has.
  void Run(int32_t slot, const std::vector<int32_t>& tokens) {
    AppendList list{records};
    cache.Reserve(SlotId{slot}, static_cast<int32_t>(tokens.size()), &list);
    cache.Commit(SlotId{slot}, tokens);
  }
  int32_t Hit(const std::vector<int32_t>& tokens) const {
    return cache.Lookup(tokens, 1000).length;
  }
  void Attach(int32_t slot, const std::vector<int32_t>& tokens) {
    cache.Attach(SlotId{slot}, cache.Lookup(tokens, 1000));
  }
  const std::vector<BlockId>& Context(int32_t slot) const {
    return cache.table(0, SlotId{slot}).blocks;
  }

  CacheManager cache;
  std::vector<PlanAppend> records = std::vector<PlanAppend>(256);
};

Request TextRequest(uint64_t id, std::vector<int32_t> prompt, int32_t max_tokens = 4) {
  Request request = ToyRequest(id, 1, max_tokens);
  request.prompt = std::move(prompt);
  return request;
}

}  // namespace

TEST_CASE("a hit maps the blocks that hold the prefix and announces them once", "[sched][prefix]") {
  Fixture f;
  f.Run(0, Text(13));
  CHECK(f.Hit(Text(20)) == 12);
  f.Attach(1, Text(20));
  CHECK(f.Context(1) == std::vector<BlockId>(f.Context(0).begin(), f.Context(0).begin() + 3));
  // [12 - 5, 12) begins in window block 3.
  CHECK(f.cache.table(1, SlotId{1}).first_mapped == 3);
  CHECK(f.cache.table(1, SlotId{1}).blocks[3] == f.cache.table(1, SlotId{0}).blocks[3]);
  CHECK(f.cache.pool(0).references(f.Context(0)[2]) == 2);
  // 3 + 3 shared ones; position 12 and 4 ahead take 2 context and 3 window blocks.
  CHECK(f.cache.AppendsToReserve(SlotId{1}, 13) == 11);
  AppendList list{f.records};
  f.cache.Reserve(SlotId{1}, 13, &list);
  CHECK(list.count() == 11);
  CHECK(f.cache.AppendsToReserve(SlotId{1}, 13) == 0);
}

TEST_CASE("a unit is indexed only when all its positions are committed", "[sched][prefix]") {
  Fixture f;
  f.Run(0, Text(7));
  CHECK(f.Hit(Text(16)) == 4);
  f.Run(0, Text(8));
  CHECK(f.Hit(Text(16)) == 8);
}

TEST_CASE("blocks of an ended sequence stay known and count as free", "[sched][prefix]") {
  Fixture f;
  f.Run(0, Text(9));
  f.cache.ReleaseAll(SlotId{0});
  CHECK(f.cache.pool(0).num_free() == 16);
  CHECK(f.cache.pool(0).num_vacant() == 14);
  CHECK(f.Hit(Text(9)) == 8);
}

TEST_CASE("when the pool runs dry the end of the oldest prefix goes first", "[sched][prefix]") {
  Fixture f(6, 64);
  f.Run(0, Text(8));
  f.cache.ReleaseAll(SlotId{0});
  f.Run(0, Text(8, 20));
  f.cache.ReleaseAll(SlotId{0});
  REQUIRE(f.cache.pool(0).num_vacant() == 2);
  f.Run(0, Text(8, 40));  // three blocks: 8 positions and 4 ahead
  CHECK(f.Hit(Text(8)) == 4);
  CHECK(f.Hit(Text(8, 20)) == 8);
  CHECK(f.cache.pool(0).num_free() == 3);
}

TEST_CASE("a hit counts as a use: what was hit last is evicted last", "[sched][prefix]") {
  Fixture f(6, 64);
  for (const int32_t first : {1, 20}) {
    f.Run(0, Text(8, first));
    f.cache.ReleaseAll(SlotId{0});
  }
  f.Attach(0, Text(8));
  f.cache.ReleaseAll(SlotId{0});
  f.Run(0, Text(8, 40));
  CHECK(f.Hit(Text(8)) == 8);
  CHECK(f.Hit(Text(8, 20)) == 4);
}

TEST_CASE("window blocks are evicted without the context blocks and come back when recomputed",
          "[sched][prefix]") {
  Fixture f(64, 12);
  f.Run(0, Text(8));
  f.cache.ReleaseAll(SlotId{0});
  f.Run(1, Text(20, 30));  // all 12 window blocks
  CHECK(f.cache.prefix_index()->num_nodes() == 7);
  CHECK(f.Hit(Text(8)) == 0);
  f.cache.ReleaseAll(SlotId{1});
  f.Run(0, Text(8));
  CHECK(f.cache.prefix_index()->num_nodes() == 7);
  CHECK(f.Hit(Text(8)) == 8);
  CHECK(f.cache.prefix_index()->Check().ok());
}

TEST_CASE("two sequences that compute one prefix at the same time index it once",
          "[sched][prefix]") {
  Fixture f(8, 64);
  f.Run(0, Text(4));
  f.Run(1, Text(4));
  CHECK(f.cache.prefix_index()->num_nodes() == 1);
  CHECK(f.cache.pool(0).cached(f.Context(0)[0]));
  CHECK_FALSE(f.cache.pool(0).cached(f.Context(1)[0]));
  // The second one goes on behind the first one's block, which is then evicted.
  f.Run(1, Text(8));
  f.cache.ReleaseAll(SlotId{0});
  f.Run(2, Text(16, 30));
  CHECK(f.Hit(Text(8)) == 0);
  CHECK(f.cache.prefix_index()->num_nodes() == 4);
  f.cache.ReleaseAll(SlotId{2});
  // Its own blocks take over with the next complete unit.
  f.Run(1, Text(12));
  CHECK(f.Hit(Text(12)) == 12);
  CHECK(f.cache.prefix_index()->Check().ok());
}

TEST_CASE("a repeated prompt starts behind its last whole unit", "[sched][scheduler][prefix]") {
  const RankInfo info = ToyRankInfo();
  const int32_t length = GENERATE(3, 4, 5, 8, 9, 11, 12, 13, 40);
  SchedulerHarness harness(ToyConfig(info), {.info = info});
  for (uint64_t id = 1; id <= 2; ++id) {
    REQUIRE(harness.Submit(TextRequest(id, Text(length))).ok());
    harness.RunToEnd();
  }
  // The last prompt token is always run.
  CHECK(harness.scheduler().stats().prefix_hits == (length - 1) / 4 * 4);
  CHECK(harness.scheduler().stats().prefix_queries == 2 * length);
  CHECK(harness.scheduler().stats().prompt_tokens == 2 * length - (length - 1) / 4 * 4);
  CHECK(harness.received(1).tokens.size() == 4);
}

TEST_CASE("a conversation finds what was generated for its earlier turns",
          "[sched][scheduler][prefix]") {
  const RankInfo info = ToyRankInfo();
  SchedulerHarness harness(ToyConfig(info), {.info = info});
  const Request first = TextRequest(1, Text(6), 20);
  REQUIRE(harness.Submit(first).ok());
  harness.RunToEnd();
  std::vector<int32_t> prompt = first.prompt;
  const std::vector<int32_t>& output = harness.received(1).tokens;
  prompt.insert(prompt.end(), output.begin(), output.end());
  REQUIRE(prompt.size() == 26);
  prompt.push_back(3);
  const Request second = TextRequest(2, prompt, 6);
  REQUIRE(harness.Submit(second).ok());
  harness.RunToEnd();
  CHECK(harness.scheduler().stats().prefix_hits == 24);
  CHECK(harness.received(2).tokens ==
        ToyContinuation(second, info.model.vocab_size, info.model.max_model_len).tokens);
}

TEST_CASE("without the prefix cache nothing is shared or counted", "[sched][scheduler][prefix]") {
  const RankInfo info = ToyRankInfo();
  SchedulerConfig config = ToyConfig(info);
  config.prefix_cache = false;
  SchedulerHarness harness(config, {.info = info});
  for (uint64_t id = 1; id <= 2; ++id) {
    REQUIRE(harness.Submit(TextRequest(id, Text(20))).ok());
    harness.RunToEnd();
  }
  CHECK(harness.scheduler().stats().prefix_hits == 0);
  CHECK(harness.scheduler().stats().prefix_queries == 0);
  CHECK(harness.scheduler().stats().prompt_tokens == 40);
}

TEST_CASE("a running sequence shares its prefix with a newcomer, which outlives it",
          "[sched][scheduler][prefix]") {
  const RankInfo info = ToyRankInfo();
  SchedulerHarness harness(ToyConfig(info), {.info = info});
  REQUIRE(harness.Submit(TextRequest(1, Text(30), 30)).ok());
  for (int i = 0; i < 3; ++i) REQUIRE(harness.Step());
  const Request second = TextRequest(2, Text(22), 20);
  REQUIRE(harness.Submit(second).ok());
  REQUIRE(harness.Step());
  CHECK(harness.scheduler().stats().prefix_hits == 20);
  harness.Abort(1);
  harness.RunToEnd();
  CHECK(harness.received(2).tokens ==
        ToyContinuation(second, info.model.vocab_size, info.model.max_model_len).tokens);
}

TEST_CASE("a preempted sequence resumes behind what is still cached",
          "[sched][scheduler][prefix]") {
  RankInfo info = ToyRankInfo();
  info.num_blocks = {14, 80};
  SchedulerHarness harness(ToyConfig(info), {.info = info});
  REQUIRE(harness.Submit(ToyRequest(1, 8, 32)).ok());
  REQUIRE(harness.Submit(ToyRequest(2, 8, 32)).ok());
  harness.RunToEnd();
  CHECK(harness.scheduler().stats().preemptions > 0);
  CHECK(harness.scheduler().stats().prefix_hits > 0);
}

TEST_CASE("blocks that running sequences hold are not counted against a newcomer",
          "[sched][scheduler][prefix]") {
  RankInfo info = ToyRankInfo();
  info.num_blocks = {17, 80};  // 68 positions: one text of 40 and its output, not a second one
  const bool prefix_cache = GENERATE(true, false);
  SchedulerConfig config = ToyConfig(info);
  config.prefix_cache = prefix_cache;
  SchedulerHarness harness(config, {.info = info});
  REQUIRE(harness.Submit(TextRequest(1, Text(40), 8)).ok());
  for (int i = 0; i < 3; ++i) REQUIRE(harness.Step());
  REQUIRE(harness.Submit(TextRequest(2, Text(40), 2)).ok());
  REQUIRE(harness.Step());
  CHECK(harness.scheduler().stats().requests_waiting == (prefix_cache ? 0 : 1));
  harness.RunToEnd();
  CHECK(harness.scheduler().stats().preemptions == 0);
}

TEST_CASE("cached blocks that nobody holds are free blocks to a newcomer, and counted once",
          "[sched][scheduler][prefix]") {
  RankInfo info = ToyRankInfo();
  info.num_blocks = {14, 80};
  SchedulerHarness harness(ToyConfig(info), {.info = info});
  REQUIRE(harness.Submit(TextRequest(1, Text(40), 2)).ok());
  harness.RunToEnd();
  REQUIRE(harness.Submit(ToyRequest(2, 8, 12)).ok());
  REQUIRE(harness.Step());
  // 14 blocks less those of request 2 are too few for 12, though nine of the 12 hold the prompt.
  REQUIRE(harness.Submit(TextRequest(3, Text(40), 2)).ok());
  REQUIRE(harness.Step());
  CHECK(harness.scheduler().stats().requests_waiting == 1);
  harness.RunToEnd();
  CHECK(harness.scheduler().stats().preemptions == 0);
  CHECK(harness.scheduler().stats().prefix_hits > 0);
}

}  // namespace firesteel
