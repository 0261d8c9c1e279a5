#include "kernels/ops/indexer/indexer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tests/kernels/support/kv_pool.h"
#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/kernels/support/slot_state.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kSlots = 2;
constexpr int32_t kEntriesPerBlock = 4;
constexpr int32_t kRows = 9;
constexpr int32_t kPadded = 12;

size_t N(int64_t i) { return static_cast<size_t>(i); }

// sqrt(heads * width) is a power of two: scores of integers are exact in fp32.
struct IndexShape {
  int32_t width = 16;
  int32_t heads = 4;
  int32_t blocks = 20;  // per slot
  DType queries = DType::kF32;
  int32_t score_rows = 3;  // fewer rows than a call has: the rest takes turns
  constexpr int32_t entries() const { return blocks * kEntriesPerBlock; }
};
constexpr int32_t kEntries = IndexShape{}.entries();

struct Selection {
  std::vector<int32_t> index, valid, chosen;
};

// Integer keys and queries, so that ties are plenty and every oracle comparison is exact. Channel 0
// of a key is 448, which makes the index format's scale 1, and the query ignores it.
class IndexerFixture {
 public:
  explicit IndexerFixture(KvFormat format, uint64_t seed = 110, const IndexShape& shape_in = {})
      : shape(shape_in),
        random_(seed),
        slots_(
            {.slots = kSlots, .max_blocks = shape.blocks, .context_tokens = 4 * kEntriesPerBlock}),
        keys_(format, shape.width, 4, kEntriesPerBlock, kSlots * shape.blocks),
        q(kPadded, shape.heads * shape.width, shape.queries, 8),
        weight(PoisonedFloats(kPadded * shape.heads)),
        visible(kPadded, 1 << 28),
        rows(kPadded) {
    // Block b of slot s: a fixed permutation of all physical blocks.
    for (int32_t i = 0; i < kSlots * shape.blocks; ++i) {
      slots_.context_table[N(i)] = (i * 7 + 3) % (kSlots * shape.blocks);
    }
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      for (int32_t e = 0; e < shape.entries(); ++e) WriteKey(slot, e, RandomKey());
    }
    for (int32_t r = 0; r < kRows; ++r) {
      rows.slot[N(r)] = r % kSlots;
      visible[N(r)] = random_.Below(shape.entries() + 1);
      for (int32_t h = 0; h < shape.heads; ++h) {
        weight[N(r * shape.heads + h)] = static_cast<float>(random_.Below(7) - 3);
        for (int32_t c = 0; c < shape.width; ++c) {
          q.Set(r, h * shape.width + c, c == 0 ? 0.0F : static_cast<float>(random_.Below(3) - 1));
        }
      }
    }
    visible[0] = 0;
    visible[1] = shape.entries();
    visible[2] = shape.entries();
  }

  std::vector<float> RandomKey() {
    std::vector<float> key(N(shape.width), 448.0F);
    for (int32_t c = 1; c < shape.width; ++c) key[N(c)] = static_cast<float>(random_.Below(3) - 1);
    return key;
  }
  int32_t PhysicalRow(int32_t slot, int32_t entry) const {
    return slots_.context_table[N(slot * shape.blocks + entry / kEntriesPerBlock)] *
               kEntriesPerBlock +
           entry % kEntriesPerBlock;
  }
  void WriteKey(int32_t slot, int32_t entry, const std::vector<float>& key) {
    keys_.Write(PhysicalRow(slot, entry), key);
  }

  Selection Run(OpFixture& ops, int32_t top_k, int32_t live = kRows) {
    const int32_t width = shape.entries();
    Selection s{std::vector<int32_t>(N(kPadded * width), -9), std::vector<int32_t>(kPadded, -9),
                std::vector<int32_t>(N(kPadded * width), -9)};
    IndexerArgs a{};
    a.q = q.rows();
    a.weight = weight.data();
    a.keys = keys_.pages();
    a.visible = visible.data();
    a.meta = rows.meta();
    a.slots = slots_.tables();
    a.out = {s.index.data(), s.valid.data(), width};
    a.chosen = s.chosen.data();
    std::vector<float> scores = PoisonedFloats(int64_t{shape.score_rows} * width);
    a.scores = scores.data();
    a.score_rows = shape.score_rows;
    a.max_entries = width;
    a.live = &live;
    a.rows = kPadded;
    a.heads = shape.heads;
    a.top_k = top_k;
    a.context_group = kContextGroup;
    a.entries_per_block = kEntriesPerBlock;
    ops.device().kernels().indexer(ops.stream(), a);
    return s;
  }

  double Score(int32_t row, int32_t entry) const {
    const std::vector<float> key = keys_.Read(PhysicalRow(rows.slot[N(row)], entry));
    const double root = std::sqrt(static_cast<double>(shape.heads * shape.width));
    double score = 0.0;
    for (int32_t h = 0; h < shape.heads; ++h) {
      double dot = 0.0;
      for (int32_t c = 0; c < shape.width; ++c) {
        dot +=
            static_cast<double>(q.Get(row, h * shape.width + c)) * static_cast<double>(key[N(c)]);
      }
      score += static_cast<double>(weight[N(row * shape.heads + h)]) / root * std::max(dot, 0.0);
    }
    return score;
  }

  // The kept entries by sorting all scores, ties to the lower entry, listed in ascending order.
  std::vector<int32_t> Oracle(int32_t row, int32_t top_k) const {
    std::vector<int32_t> order(N(visible[N(row)]));
    std::iota(order.begin(), order.end(), 0);
    std::vector<double> score;
    for (const int32_t e : order) score.push_back(Score(row, e));
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return score[N(a)] > score[N(b)]; });
    if (order.size() > N(top_k)) order.resize(N(top_k));
    std::sort(order.begin(), order.end());
    return order;
  }

  const IndexShape shape;

 private:
  TestRandom random_;
  SlotState slots_;
  KvPool keys_;

 public:
  RowMatrix q;
  std::vector<float> weight;
  std::vector<int32_t> visible;
  RowState rows;
};

std::vector<int32_t> Kept(const Selection& s, int32_t row, int32_t width = kEntries) {
  const auto begin = s.chosen.begin() + static_cast<std::ptrdiff_t>(row * width);
  return {begin, begin + s.valid[N(row)]};
}

TEST_CASE("the kept entries are exactly the best ones, ties to the lower entry", "[ops][indexer]") {
  OpFixture ops(3);
  const KvFormat format = GENERATE(KvFormat::kF32, KvFormat::kBf16, KvFormat::kFp8Index);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  for (uint64_t seed = 110; seed < 116; ++seed) {
    IndexShape shape;
    shape.queries = dtype;
    IndexerFixture f(format, seed, shape);
    for (const int32_t top_k : {1, 2, 7, 31, kEntries - 1, kEntries}) {
      const Selection s = f.Run(ops, top_k);
      for (int32_t r = 0; r < kRows; ++r) {
        INFO("seed " << seed << " top_k " << top_k << " row " << r);
        CHECK(Kept(s, r) == f.Oracle(r, top_k));
      }
    }
  }
}

TEST_CASE("the output lists physical rows and marks unused chosen columns", "[ops][indexer]") {
  OpFixture ops(1);
  IndexerFixture f(KvFormat::kF32);
  const Selection s = f.Run(ops, 7);
  for (int32_t r = 0; r < kRows; ++r) {
    const std::vector<int32_t> kept = f.Oracle(r, 7);
    for (int32_t i = 0; i < kEntries; ++i) {
      const size_t at = N(r * kEntries + i);
      if (N(i) < kept.size()) {
        CHECK(s.index[at] == f.PhysicalRow(f.rows.slot[N(r)], kept[N(i)]));
      } else {
        CHECK(s.chosen[at] == -1);
      }
    }
  }
}

TEST_CASE("a row with no more visible entries than top_k keeps all of them", "[ops][indexer]") {
  OpFixture ops(1);
  IndexerFixture f(KvFormat::kF32);
  for (int32_t visible = 0; visible <= 12; ++visible) {
    f.visible[3] = visible;
    const Selection s = f.Run(ops, 12);
    std::vector<int32_t> all(N(visible));
    std::iota(all.begin(), all.end(), 0);
    CHECK(Kept(s, 3) == all);
  }
}

TEST_CASE("an entry whose score is NaN ranks behind every other", "[ops][indexer]") {
  OpFixture ops(1);
  IndexerFixture f(KvFormat::kF32);
  const int32_t slot = f.rows.slot[1];
  const std::vector<float> nan(N(f.shape.width), BitsFloat(0x7fc00000U));
  for (const int32_t e : {0, 5, 79}) f.WriteKey(slot, e, nan);
  const Selection almost_all = f.Run(ops, kEntries - 3);
  const std::vector<int32_t> kept = Kept(almost_all, 1);
  CHECK(kept.size() == N(kEntries - 3));
  for (const int32_t e : {0, 5, 79}) CHECK(std::find(kept.begin(), kept.end(), e) == kept.end());
  // With room for one of them the lowest is taken.
  const std::vector<int32_t> one_more = Kept(f.Run(ops, kEntries - 2), 1);
  CHECK(one_more.front() == 0);
  CHECK(std::find(one_more.begin(), one_more.end(), 5) == one_more.end());
}

TEST_CASE("a row's selection does not depend on its neighbours", "[ops][indexer]") {
  OpFixture ops(3);
  IndexerFixture f(KvFormat::kFp8Index);
  const Selection all = f.Run(ops, 9);
  for (int32_t r = 0; r < kRows; ++r) {
    IndexerFixture one(KvFormat::kFp8Index);
    one.q.CopyRow(0, f.q, r);
    std::copy_n(f.weight.begin() + r * f.shape.heads, f.shape.heads, one.weight.begin());
    one.rows.slot[0] = f.rows.slot[N(r)];
    one.visible[0] = f.visible[N(r)];
    CHECK(Kept(one.Run(ops, 9, 1), 0) == Kept(all, r));
  }
}

// Index keys of the published width; 80 and 600 entries end within a tile and beyond a block of tiles.
IndexShape WideShape(int32_t heads, int32_t blocks, DType queries, int32_t score_rows = kPadded) {
  return {
      .width = 128, .heads = heads, .blocks = blocks, .queries = queries, .score_rows = score_rows};
}

TEST_CASE("the kept entries of the published width are exactly the best ones", "[ops][indexer]") {
  OpFixture ops(3);
  const DType queries = GENERATE(DType::kF32, DType::kBf16);
  const int32_t heads = GENERATE(8, 32);
  const int32_t blocks = GENERATE(20, 150);
  IndexerFixture f(KvFormat::kFp8Index, 116, WideShape(heads, blocks, queries));
  // Neighbours of one slot share its keys, and one of them sees few.
  for (const int32_t r : {3, 4, 5, 6}) f.rows.slot[N(r)] = 1;
  f.visible[4] = 33;
  for (const int32_t top_k : {1, 31, 33, f.shape.entries() - 1}) {
    const Selection s = f.Run(ops, top_k);
    for (int32_t r = 0; r < kRows; ++r) {
      INFO("top_k " << top_k << " row " << r);
      CHECK(Kept(s, r, f.shape.entries()) == f.Oracle(r, top_k));
    }
  }
}

TEST_CASE("no entry that is left out scores better than one that is kept", "[ops][indexer]") {
  OpFixture ops(3);
  TestRandom random(117);
  IndexerFixture f(KvFormat::kFp8Index, 117, WideShape(64, 150, DType::kF32));
  for (int32_t slot = 0; slot < kSlots; ++slot) {
    for (int32_t e = 0; e < f.shape.entries(); ++e) {
      f.WriteKey(slot, e, RandomFloats(random, f.shape.width, -2.0F, 2.0F));
    }
  }
  for (int32_t r = 0; r < kRows; ++r) {
    for (int32_t c = 0; c < 64 * 128; ++c) f.q.Set(r, c, random.Uniform(-1.0F, 1.0F));
    for (int32_t h = 0; h < 64; ++h) f.weight[N(r * 64 + h)] = random.Uniform(-1.0F, 1.0F);
  }
  const Selection s = f.Run(ops, 100);
  for (const int32_t r : {1, 2}) {
    const std::vector<int32_t> kept = Kept(s, r, f.shape.entries());
    REQUIRE(kept.size() == 100);
    double least = INFINITY;
    double best_left = -INFINITY;
    for (int32_t e = 0; e < f.visible[N(r)]; ++e) {
      const double score = f.Score(r, e);
      if (std::binary_search(kept.begin(), kept.end(), e)) {
        least = std::min(least, score);
      } else {
        best_left = std::max(best_left, score);
      }
    }
    CHECK(least > best_left - 1e-5);  // scores are of the order of one
  }
}

TEST_CASE("an index key with a NaN ranks behind every other", "[ops][indexer]") {
  OpFixture ops(1);
  IndexerFixture f(KvFormat::kFp8Index, 118, WideShape(32, 20, DType::kF32));
  const int32_t slot = f.rows.slot[1];
  for (const int32_t e : {0, 37, 79}) {
    std::vector<float> key = f.RandomKey();
    key[N(e)] = BitsFloat(0x7fc00000U);
    f.WriteKey(slot, e, key);
  }
  const std::vector<int32_t> kept = Kept(f.Run(ops, kEntries - 3), 1);
  CHECK(kept.size() == N(kEntries - 3));
  for (const int32_t e : {0, 37, 79}) CHECK(std::find(kept.begin(), kept.end(), e) == kept.end());
}

TEST_CASE("a row's selection from wide keys does not depend on its neighbours", "[ops][indexer]") {
  OpFixture ops(3);
  const DType queries = GENERATE(DType::kF32, DType::kBf16);
  const auto random_queries = [&](IndexerFixture& f) {
    TestRandom random(119);
    for (int32_t r = 0; r < kRows; ++r) {
      for (int32_t c = 0; c < 32 * 128; ++c) f.q.Set(r, c, random.Uniform(-1.0F, 1.0F));
    }
  };
  IndexerFixture f(KvFormat::kFp8Index, 119, WideShape(32, 150, queries));
  random_queries(f);
  const Selection all = f.Run(ops, 40);
  for (int32_t r = 0; r < kRows; ++r) {
    IndexerFixture one(KvFormat::kFp8Index, 119, WideShape(32, 150, queries, 1 + r % 3));
    one.q.CopyRow(0, f.q, r);
    std::copy_n(f.weight.begin() + r * 32, 32, one.weight.begin());
    one.rows.slot[0] = f.rows.slot[N(r)];
    one.visible[0] = f.visible[N(r)];
    CHECK(Kept(one.Run(ops, 40, 1), 0, 600) == Kept(all, r, 600));
  }
}

TEST_CASE("rows past the live count are not written", "[ops][indexer]") {
  OpFixture ops(2);
  IndexerFixture f(KvFormat::kF32);
  for (const int32_t live : {0, 1, kRows}) {
    const Selection s = f.Run(ops, 5, live);
    for (int32_t r = live; r < kPadded; ++r) {
      CHECK(s.valid[N(r)] == -9);
      for (int32_t i = 0; i < kEntries; ++i) {
        REQUIRE(s.index[N(r * kEntries + i)] == -9);
        REQUIRE(s.chosen[N(r * kEntries + i)] == -9);
      }
    }
  }
}

}  // namespace
}  // namespace firesteel
