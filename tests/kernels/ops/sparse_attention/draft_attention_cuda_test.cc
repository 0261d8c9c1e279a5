// The Hopper draft-block attention against the CPU column. Needs a GPU of compute capability 9.0 (label cuda).
#include "tests/kernels/support/draft_block_case.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

// bf16 inputs, weights rounded to bf16 before they meet the values: two roundings of 2^-9 at most.
constexpr double kTolerance = 4e-3;

const std::vector<sm90::DraftTile> kTiles = {{1, 8, 1}, {1, 16, 1}, {1, 16, 3},
                                             {5, 8, 1}, {5, 8, 2},  {5, 8, 8}};

TEST_CASE("draft attention matches the CPU for short and long lists in both formats", "[cuda]") {
  for (const KvFormat format : {KvFormat::kFp8, KvFormat::kBf16}) {
    for (const int32_t heads : {8, 16, 64}) {
      const DraftBlockCase c(
          {.heads = heads, .format = format, .valid = {133, 6, 129, 65, 5, 132, 0}});
      for (const sm90::DraftTile& tile : kTiles) {
        if (heads % tile.heads != 0) continue;
        INFO("heads " << heads << ", tile " << tile.rows << "x" << tile.heads << "x"
                      << tile.per_cta);
        CHECK(c.RelativeError(c.Run(tile)) <= kTolerance);
      }
    }
  }
}

TEST_CASE("a query row has the same bits for every tile shape", "[cuda]") {
  for (const KvFormat format : {KvFormat::kFp8, KvFormat::kBf16}) {
    const DraftBlockCase c({.heads = 64, .format = format, .valid = {133, 17, 128}});
    const std::vector<uint16_t> first = c.Run(kTiles.front());
    for (const sm90::DraftTile& tile : kTiles) CHECK(c.Run(tile) == first);
  }
}

TEST_CASE("a constant value of 1 comes out as exactly 1 when the sink is off", "[cuda]") {
  for (const KvFormat format : {KvFormat::kFp8, KvFormat::kBf16}) {
    const DraftBlockCase c(
        {.format = format, .valid = {133, 6}, .constant_value = true, .sink = -INFINITY});
    for (const uint16_t x : c.Run({5, 8, 2})) REQUIRE(Bf16ToFloat(x) == 1.0F);
  }
}

TEST_CASE("the first row of a block sees a dominating last block key", "[cuda]") {
  const DraftBlockCase c({.valid = {133}, .last_key_dominates = true});
  const std::vector<uint16_t> out = c.Run({1, 8, 1});
  for (size_t i = 0; i < 512; ++i) REQUIRE(Bf16ToFloat(out[i]) > 0.99F);
}

TEST_CASE("the selected tile keeps the grid to one wave once it is full", "[cuda]") {
  const auto grid = [](int32_t lists, int32_t heads) {
    const sm90::DraftTile t = sm90::SelectDraftTile(lists, 5, heads, 132);
    return lists * CeilDiv(heads / t.heads * (5 / t.rows), t.per_cta);
  };
  for (const int32_t lists : {1, 8, 32, 128}) {
    CHECK(grid(lists, 16) <= 132);
    CHECK(grid(lists, 64) <= 132);
  }
}

}  // namespace
}  // namespace firesteel
