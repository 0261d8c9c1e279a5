#include "engine/sched/block_pool.h"

#include <set>
#include <vector>

#include "tests/support/catch.h"

namespace firesteel {

TEST_CASE("a pool hands out every block once before it is empty", "[sched][block_pool]") {
  BlockPool pool(5);
  std::set<int32_t> seen;
  while (pool.num_free() > 0) seen.insert(pool.Allocate().value);
  CHECK(seen == std::set<int32_t>{0, 1, 2, 3, 4});
}

TEST_CASE("a released block is free and can be allocated again", "[sched][block_pool]") {
  BlockPool pool(2);
  const BlockId first = pool.Allocate();
  pool.Allocate();
  REQUIRE(pool.num_free() == 0);
  CHECK(pool.references(first) == 1);
  pool.Release(first);
  CHECK(pool.references(first) == 0);
  CHECK(pool.num_free() == 1);
  CHECK(pool.Allocate() == first);
}

TEST_CASE("a cached block stays findable until vacant ones are gone", "[sched][block_pool]") {
  BlockPool pool(2);
  const BlockId first = pool.Allocate();
  pool.SetCached(first);
  pool.Release(first);
  CHECK(pool.num_free() == 2);
  CHECK(pool.num_vacant() == 1);
  CHECK(pool.Allocate() != first);
  CHECK(pool.num_vacant() == 0);
  CHECK(pool.OldestCached() == first);
  pool.ClearCached(first);
  CHECK(pool.Allocate() == first);
}

TEST_CASE("the cached block released longest ago is the oldest", "[sched][block_pool]") {
  BlockPool pool(3);
  std::vector<BlockId> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(pool.Allocate());
  for (const BlockId block : blocks) pool.SetCached(block);
  CHECK_FALSE(pool.OldestCached().valid());
  for (const size_t i : {1, 0, 2}) pool.Release(blocks[i]);
  CHECK(pool.OldestCached() == blocks[1]);
  pool.Acquire(blocks[1]);  // in use again, and later the newest
  CHECK(pool.OldestCached() == blocks[0]);
  pool.Release(blocks[1]);
  pool.ClearCached(blocks[0]);
  CHECK(pool.OldestCached() == blocks[2]);
  pool.ClearCached(blocks[2]);
  CHECK(pool.OldestCached() == blocks[1]);
}

TEST_CASE("a shared block is free only after its last release", "[sched][block_pool]") {
  BlockPool pool(1);
  const BlockId block = pool.Allocate();
  pool.SetCached(block);
  pool.Acquire(block);
  CHECK(pool.references(block) == 2);
  pool.Release(block);
  CHECK(pool.num_free() == 0);
  pool.Release(block);
  CHECK(pool.num_free() == 1);
}

}  // namespace firesteel
