#include "engine/sched/cache_manager.h"

#include <vector>

#include "tests/support/catch.h"

namespace firesteel {
namespace {

const SlotId kSlot{1};

CacheSpec TwoGroups() {
  CacheSpec spec;
  spec.groups = {{.name = "context", .block_tokens = 4},
                 {.name = "window", .block_tokens = 2, .retained_tokens = 3}};
  spec.lookahead_tokens = 2;
  return spec;
}

struct Fixture {
  CacheManager cache{TwoGroups(), std::vector<int32_t>{8, 8}, 3};
  std::vector<PlanAppend> records = std::vector<PlanAppend>(32);
  AppendList list{records};
};

}  // namespace

TEST_CASE("reserving maps the length and the lookahead in every group", "[sched][cache]") {
  Fixture f;
  CHECK(f.cache.AppendsToReserve(kSlot, 5) == 6);
  f.cache.Reserve(kSlot, 5, &f.list);
  CHECK(f.list.count() == 6);
  CHECK(f.cache.table(0, kSlot).num_mapped() == 2);  // ceil(7 / 4)
  CHECK(f.cache.table(1, kSlot).num_mapped() == 4);  // ceil(7 / 2)
  CHECK(f.cache.pool(0).num_free() == 6);
  CHECK(f.cache.AppendsToReserve(kSlot, 6) == 0);
}

TEST_CASE("a record names the group, the slot, the entry and the block", "[sched][cache]") {
  Fixture f;
  f.cache.Reserve(kSlot, 1, &f.list);
  REQUIRE(f.list.count() == 3);
  const PlanAppend& last = f.records[2];
  CHECK(last.group == 1);
  CHECK(last.slot == kSlot.value);
  CHECK(last.index == 1);
  CHECK(last.block == f.cache.table(1, kSlot).blocks[1].value);
}

TEST_CASE("a block is released once all its positions are older than the window",
          "[sched][cache]") {
  Fixture f;
  f.cache.Reserve(kSlot, 8, &f.list);
  const int32_t before = f.list.count();
  // Retained are [committed - 3, committed): position 1 shares block 0 with position 0.
  f.cache.ReleaseOld(kSlot, 4, &f.list);
  CHECK(f.list.count() == before);
  f.cache.ReleaseOld(kSlot, 5, &f.list);
  REQUIRE(f.list.count() == before + 1);
  const PlanAppend& record = f.records[static_cast<size_t>(before)];
  CHECK(record.group == 1);
  CHECK(record.index == 0);
  CHECK(record.block == -1);
  CHECK(f.cache.table(1, kSlot).first_mapped == 1);
  CHECK(f.cache.pool(1).num_free() == 4);
}

TEST_CASE("a group without a window keeps every block", "[sched][cache]") {
  Fixture f;
  f.cache.Reserve(kSlot, 14, &f.list);
  f.cache.ReleaseOld(kSlot, 14, &f.list);
  CHECK(f.cache.table(0, kSlot).num_mapped() == 4);
  CHECK(f.cache.AppendsToReleaseOld(kSlot, 14) == 0);
}

TEST_CASE("rows that fit are limited by the scarcest group", "[sched][cache]") {
  Fixture f;
  // window: 8 blocks of 2 are 16 positions, 2 of them lookahead.
  CHECK(f.cache.RowsThatFit(kSlot, 0) == 14);
  f.cache.Reserve(SlotId{0}, 4, &f.list);  // takes 3 window blocks
  CHECK(f.cache.RowsThatFit(kSlot, 0) == 8);
  CHECK(f.cache.RowsThatFit(kSlot, 8) == 0);
}

TEST_CASE("releasing a slot frees all its blocks, released ones not twice", "[sched][cache]") {
  Fixture f;
  f.cache.Reserve(kSlot, 9, &f.list);
  f.cache.ReleaseOld(kSlot, 9, &f.list);
  f.cache.ReleaseAll(kSlot);
  CHECK(f.cache.pool(0).num_free() == 8);
  CHECK(f.cache.pool(1).num_free() == 8);
  CHECK(f.cache.table(1, kSlot).blocks.empty());
}

TEST_CASE("blocks to hold never exceed those of the whole length or of one window and step",
          "[sched][cache]") {
  const CacheSpec spec = TwoGroups();
  CHECK(BlocksToHold(spec.groups[0], 2, 10, 4) == 3);
  CHECK(BlocksToHold(spec.groups[1], 2, 3, 4) == 3);
  // 3 retained + 4 rows + 2 ahead are 9 positions: 5 blocks, whatever the alignment.
  CHECK(BlocksToHold(spec.groups[1], 2, 1000, 4) == 5);
}

}  // namespace firesteel
