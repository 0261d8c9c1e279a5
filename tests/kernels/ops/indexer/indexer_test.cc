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
constexpr int32_t kBlocks = 20;  // per slot
constexpr int32_t kEntries = kBlocks * kEntriesPerBlock;
constexpr int32_t kWidth = 16;
constexpr int32_t kHeads = 4;  // sqrt(heads * width) = 8: scores of integers are exact in fp32
constexpr int32_t kRows = 9;
constexpr int32_t kPadded = 12;

size_t N(int64_t i) { return static_cast<size_t>(i); }

struct Selection {
  std::vector<int32_t> index, valid, chosen;
};

// Integer keys and queries, so that ties are plenty and every oracle comparison is exact. Channel 0
// of a key is 448, which makes the index format's scale 1, and the query ignores it.
class IndexerFixture {
 public:
  explicit IndexerFixture(KvFormat format, uint64_t seed = 110, DType dtype = DType::kF32)
      : random_(seed),
        slots_({.slots = kSlots, .max_blocks = kBlocks, .context_tokens = 4 * kEntriesPerBlock}),
        keys_(format, kWidth, 4, kEntriesPerBlock, kSlots * kBlocks),
        q(kPadded, kHeads * kWidth, dtype),
        weight(PoisonedFloats(kPadded * kHeads)),
        visible(kPadded, 1 << 28),
        rows(kPadded) {
    // Block b of slot s: a fixed permutation of all physical blocks.
    for (int32_t i = 0; i < kSlots * kBlocks; ++i) {
      slots_.context_table[N(i)] = (i * 7 + 3) % (kSlots * kBlocks);
    }
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      for (int32_t e = 0; e < kEntries; ++e) WriteKey(slot, e, RandomKey());
    }
    for (int32_t r = 0; r < kRows; ++r) {
      rows.slot[N(r)] = r % kSlots;
      visible[N(r)] = random_.Below(kEntries + 1);
      for (int32_t h = 0; h < kHeads; ++h) {
        weight[N(r * kHeads + h)] = static_cast<float>(random_.Below(7) - 3);
        for (int32_t c = 0; c < kWidth; ++c) {
          q.Set(r, h * kWidth + c, c == 0 ? 0.0F : static_cast<float>(random_.Below(3) - 1));
        }
      }
    }
    visible[0] = 0;
    visible[1] = kEntries;
    visible[2] = kEntries;
  }

  std::vector<float> RandomKey() {
    std::vector<float> key(kWidth, 448.0F);
    for (int32_t c = 1; c < kWidth; ++c) key[N(c)] = static_cast<float>(random_.Below(3) - 1);
    return key;
  }
  int32_t PhysicalRow(int32_t slot, int32_t entry) const {
    return slots_.context_table[N(slot * kBlocks + entry / kEntriesPerBlock)] * kEntriesPerBlock +
           entry % kEntriesPerBlock;
  }
  void WriteKey(int32_t slot, int32_t entry, const std::vector<float>& key) {
    keys_.Write(PhysicalRow(slot, entry), key);
  }

  Selection Run(OpFixture& ops, int32_t top_k, int32_t live = kRows, int32_t width = kEntries) {
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
    // Fewer rows than the call has: the rest takes turns.
    std::vector<float> scores = PoisonedFloats(int64_t{3} * kEntries);
    a.scores = scores.data();
    a.score_rows = 3;
    a.max_entries = kEntries;
    a.live = &live;
    a.rows = kPadded;
    a.heads = kHeads;
    a.top_k = top_k;
    a.context_group = kContextGroup;
    a.entries_per_block = kEntriesPerBlock;
    ops.device().kernels().indexer(ops.stream(), a);
    return s;
  }

  double Score(int32_t row, int32_t entry) const {
    const std::vector<float> key = keys_.Read(PhysicalRow(rows.slot[N(row)], entry));
    double score = 0.0;
    for (int32_t h = 0; h < kHeads; ++h) {
      double dot = 0.0;
      for (int32_t c = 0; c < kWidth; ++c) {
        dot += static_cast<double>(q.Get(row, h * kWidth + c)) * static_cast<double>(key[N(c)]);
      }
      score += static_cast<double>(weight[N(row * kHeads + h)]) / 8.0 * std::max(dot, 0.0);
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
    IndexerFixture f(format, seed, dtype);
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
  const std::vector<float> nan(kWidth, BitsFloat(0x7fc00000U));
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
    std::copy_n(f.weight.begin() + r * kHeads, kHeads, one.weight.begin());
    one.rows.slot[0] = f.rows.slot[N(r)];
    one.visible[0] = f.visible[N(r)];
    CHECK(Kept(one.Run(ops, 9, 1), 0) == Kept(all, r));
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
