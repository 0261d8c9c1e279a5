#include "engine/sched/block_pool.h"

#include <set>

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

}  // namespace firesteel
