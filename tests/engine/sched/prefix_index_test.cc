#include "engine/sched/prefix_index.h"

#include <vector>

#include "tests/support/catch.h"

namespace firesteel {
namespace {

// Units of 4 tokens: one context block and two window blocks, of which the last two cover the window.
CacheSpec TwoGroups() {
  CacheSpec spec;
  spec.groups = {{.name = "context", .block_tokens = 4},
                 {.name = "window", .block_tokens = 2, .retained_tokens = 4}};
  return spec;
}

uint64_t Collide(uint64_t, std::span<const int32_t>) { return 7; }

struct Fixture {
  explicit Fixture(PrefixIndex::HashFunction hash = PrefixIndex::HashTokens)
      : index(TwoGroups(), std::vector<int32_t>{32, 64}, hash) {}

  // Block b of the context group goes with blocks 2 b and 2 b + 1 of the window group.
  int32_t Add(int32_t parent, const std::vector<int32_t>& tokens, int32_t block) {
    const int32_t node = index.Insert(parent, tokens);
    index.SetBlock(node, 0, 0, BlockId{block});
    for (int32_t i = 0; i < 2; ++i) index.SetBlock(node, 1, i, BlockId{2 * block + i});
    return node;
  }
  int32_t Length(const std::vector<int32_t>& tokens, int32_t most = 100) const {
    return index.Match(tokens, most).length;
  }
  bool Sound() const { return index.Check().ok(); }

  PrefixIndex index;
  std::vector<PrefixIndex::GroupBlock> left;
};

const std::vector<int32_t> kA = {1, 2, 3, 4};
const std::vector<int32_t> kB = {5, 6, 7, 8};

std::vector<int32_t> Join(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  std::vector<int32_t> all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

}  // namespace

TEST_CASE("the unit is the least that is whole blocks in every group", "[sched][prefix]") {
  const Fixture f;
  CHECK(f.index.block_tokens() == 4);
  CHECK(f.index.blocks_per_unit(0) == 1);
  CHECK(f.index.blocks_per_unit(1) == 2);
  CHECK(f.index.FirstEntry(0, 12) == 0);
  CHECK(f.index.FirstEntry(1, 12) == 4);
}

TEST_CASE("the longest known prefix is found, and only whole units count", "[sched][prefix]") {
  Fixture f;
  f.Add(f.Add(-1, kA, 0), kB, 1);
  CHECK(f.Length(Join(kA, kB)) == 8);
  CHECK(f.Length(Join(kA, {5, 6, 7})) == 4);
  CHECK(f.Length(Join(kA, {5, 6, 7, 9})) == 4);
  CHECK(f.Length({1, 2, 3}) == 0);
  CHECK(f.Length(kB) == 0);
  CHECK(f.index.Match(Join(kA, kB), 100).path.size() == 2);
}

TEST_CASE("equal hashes do not share: the tokens and the parent are compared", "[sched][prefix]") {
  Fixture f(Collide);
  const int32_t a = f.Add(-1, kA, 0);
  const int32_t b = f.Add(-1, kB, 1);
  const int32_t ab = f.Add(a, kB, 2);
  REQUIRE(f.Sound());
  CHECK(f.index.Match(kA, 100).path == std::vector<int32_t>{a});
  CHECK(f.index.Match(kB, 100).path == std::vector<int32_t>{b});
  CHECK(f.index.Match(Join(kA, kB), 100).path == std::vector<int32_t>{a, ab});
  CHECK(f.Length(Join(kB, kB)) == 4);
  CHECK(f.Length({9, 9, 9, 9}) == 0);
}

TEST_CASE("the hash chains: one unit behind different prefixes has different hashes",
          "[sched][prefix]") {
  CHECK(PrefixIndex::HashTokens(1, kA) != PrefixIndex::HashTokens(2, kA));
  CHECK(PrefixIndex::HashTokens(1, kA) != PrefixIndex::HashTokens(1, kB));
  CHECK(PrefixIndex::HashTokens(1, kA) == PrefixIndex::HashTokens(1, kA));
}

TEST_CASE("a hit does not end where the window is gone, but may end before or behind it",
          "[sched][prefix]") {
  Fixture f;
  const int32_t a = f.Add(-1, kA, 0);
  const int32_t b = f.Add(a, kB, 1);
  f.Add(b, kA, 2);
  const std::vector<int32_t> text = Join(Join(kA, kB), kA);
  f.index.Forget(1, f.index.block(b, 1, 1), &f.left);
  REQUIRE(f.left.size() == 1);
  CHECK(f.Length(text) == 12);
  CHECK(f.Length(Join(kA, kB)) == 4);
  f.index.Forget(1, BlockId{4}, &f.left);  // of the last unit
  CHECK(f.Length(text) == 4);
  REQUIRE(f.Sound());
  f.index.SetBlock(b, 1, 1, BlockId{60});
  CHECK(f.Length(text) == 8);
}

TEST_CASE("a node that loses its context block takes everything behind it along",
          "[sched][prefix]") {
  Fixture f;
  const int32_t a = f.Add(-1, kA, 0);
  const int32_t ab = f.Add(a, kB, 1);
  f.Add(ab, kA, 2);
  f.Add(ab, kB, 3);
  const int32_t b = f.Add(-1, kB, 4);
  const PrefixIndex::NodeRef ref = f.index.RefTo(ab);
  CHECK(f.index.Contains(ref));
  f.index.Forget(0, BlockId{1}, &f.left);
  CHECK(f.left.size() == 9);  // three nodes of three blocks
  CHECK(f.index.num_nodes() == 2);
  CHECK_FALSE(f.index.Contains(ref));
  CHECK(f.Length(Join(kA, kB)) == 4);
  CHECK(f.index.Match(kB, 100).path == std::vector<int32_t>{b});
  REQUIRE(f.Sound());
  // The same place is used again, and the old name does not find it.
  f.Add(a, kB, 1);
  CHECK_FALSE(f.index.Contains(ref));
  CHECK(f.Length(Join(kA, kB)) == 8);
}

TEST_CASE("a hit is shortened to the records that fit into a plan", "[sched][prefix]") {
  Fixture f;
  f.Add(f.Add(f.Add(-1, kA, 0), kB, 1), kB, 2);
  const std::vector<int32_t> text = Join(Join(kA, kB), kB);
  // n context blocks and the two window blocks of the last unit.
  CHECK(f.Length(text, 5) == 12);
  CHECK(f.Length(text, 4) == 8);
  CHECK(f.Length(text, 3) == 4);
  CHECK(f.Length(text, 2) == 0);
}

TEST_CASE("a path spells its tokens from the first one on", "[sched][prefix]") {
  Fixture f;
  const int32_t ab = f.Add(f.Add(-1, kA, 0), kB, 1);
  CHECK(f.index.Spells(ab, Join(kA, kB)));
  CHECK_FALSE(f.index.Spells(ab, Join(kB, kB)));
  CHECK_FALSE(f.index.Spells(ab, kA));
  const PrefixIndex::Place place = f.index.PlaceOf(1, BlockId{3});
  CHECK(place.node == ab);
  CHECK(place.depth == 1);
  CHECK(place.piece == 1);
  CHECK(f.index.PlaceOf(1, BlockId{9}).node == -1);
}

}  // namespace firesteel
