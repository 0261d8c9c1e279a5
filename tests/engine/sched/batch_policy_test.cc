#include "engine/sched/batch_policy.h"

#include <vector>

#include "tests/support/catch.h"

namespace firesteel {
namespace {

// The rows each demand gets, 0 for none.
std::vector<int32_t> Grant(const std::vector<RowDemand>& demands, int32_t budget, int32_t chunk) {
  std::vector<RowGrant> grants;
  GrantRows(demands, {.row_budget = budget, .prefill_chunk = chunk}, &grants);
  std::vector<int32_t> rows(demands.size(), 0);
  for (const RowGrant& grant : grants) rows[static_cast<size_t>(grant.demand)] += grant.rows;
  return rows;
}

using Rows = std::vector<int32_t>;

}  // namespace

TEST_CASE("verify blocks are served before an older prefill", "[sched][policy]") {
  CHECK(Grant({{false, 100}, {true, 4}, {true, 4}}, 10, 64) == Rows{2, 4, 4});
}

TEST_CASE("a prefill gets one chunk at most", "[sched][policy]") {
  CHECK(Grant({{false, 100}, {false, 3}}, 50, 16) == Rows{16, 3});
}

TEST_CASE("prefills share the budget oldest first", "[sched][policy]") {
  CHECK(Grant({{false, 10}, {false, 10}, {false, 10}}, 15, 16) == Rows{10, 5, 0});
}

TEST_CASE("a verify block is never split", "[sched][policy]") {
  CHECK(Grant({{true, 4}, {true, 4}, {true, 1}}, 6, 16) == Rows{4, 0, 1});
}

TEST_CASE("rows are laid out with decodes first", "[sched][policy]") {
  std::vector<RowGrant> grants;
  const std::vector<RowDemand> demands = {{false, 5}, {true, 2}};
  GrantRows(demands, {.row_budget = 20, .prefill_chunk = 20}, &grants);
  REQUIRE(grants.size() == 2);
  CHECK(grants[0].demand == 1);
  CHECK(grants[1].demand == 0);
}

}  // namespace firesteel
