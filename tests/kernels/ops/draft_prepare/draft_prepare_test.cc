#include "kernels/ops/draft_prepare/draft_prepare.h"

#include <algorithm>
#include <vector>

#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/slot_state.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kBlock = 5;
constexpr int32_t kWindow = 128;
constexpr int32_t kBlockTokens = 16;
constexpr int32_t kMaxBlocks = 60;
constexpr int32_t kSequences = 4;
constexpr int32_t kRows = 24;
constexpr int32_t kNoise = 999;
constexpr int32_t kGarbage = -99;

size_t N(int64_t i) { return static_cast<size_t>(i); }

class Drafted {
 public:
  explicit Drafted(int32_t key_width = 256)
      : slots({.slots = kSequences, .max_blocks = kMaxBlocks, .window_tokens = kBlockTokens}),
        rows(kRows),
        sequences(kSequences),
        slot(kSequences, kGarbage),
        chain(N(kSequences * (kBlock + 1)), kGarbage),
        token(N(kSequences * kBlock), kGarbage),
        position(token),
        window_row(token),
        index(N(kSequences * key_width), kGarbage),
        valid(kSequences, kGarbage),
        commit_row(kRows, kGarbage),
        width(key_width) {
    for (int32_t s = 0; s < kSequences; ++s) {
      slots.last_token[N(s)] = 70 + s;
      for (int32_t i = 0; i < kMaxBlocks; ++i) {
        slots.window_table[N(s * kMaxBlocks + i)] = (i * 7 + s) % kMaxBlocks + s * kMaxBlocks;
      }
    }
  }
  int32_t WindowRow(int32_t s, int32_t p) const {
    return slots.window_table[N(s * kMaxBlocks + p / kBlockTokens)] * kBlockTokens +
           p % kBlockTokens;
  }
  void AddSequence(int32_t at, int32_t s, int32_t length, bool propose) {
    sequences.slot[N(at)] = s;
    sequences.propose[N(at)] = propose ? 1 : 0;
    slots.length[N(s)] = length;
  }
  void AddRows(int32_t first, int32_t s, int32_t start, int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      rows.slot[N(first + i)] = s;
      rows.position[N(first + i)] = start + i;
      rows.window_row[N(first + i)] = WindowRow(s, start + i);
    }
  }
  void Run(OpFixture& ops) {
    DraftPrepareArgs a{};
    a.slots = slots.tables();
    a.sequences = sequences.meta();
    a.rows = rows.meta();
    a.live = &live;
    a.draft = {slot.data(),      chain.data(),      token.data(),
               position.data(),  window_row.data(), {index.data(), valid.data(), width},
               commit_row.data()};
    a.window_group = kWindowGroup;
    a.window_tokens = kWindow;
    a.block = kBlock;
    a.noise_token = kNoise;
    a.padded_rows = kRows;
    a.padded_sequences = kSequences;
    ops.device().kernels().draft_prepare(ops.stream(), a);
  }

  SlotState slots;
  RowState rows;
  SequenceState sequences;
  LiveCounts live{7, 3, 2, kGarbage, kGarbage, 7};
  std::vector<int32_t> slot, chain, token, position, window_row, index, valid, commit_row;
  int32_t width;
};

TEST_CASE("a draft block sees the last window positions and the whole block",
          "[ops][draft_prepare]") {
  OpFixture ops(1);
  for (const int32_t anchor : {1, 5, 127, 128, 129, 900}) {
    for (const int32_t width : {133, 256}) {
      Drafted d(width);
      d.AddSequence(0, 2, anchor, true);
      d.Run(ops);
      std::vector<int32_t> wanted;
      for (int32_t p = std::max(0, anchor - kWindow); p < anchor + kBlock; ++p) {
        wanted.push_back(d.WindowRow(2, p));
      }
      INFO("anchor " << anchor << " width " << width);
      REQUIRE(d.valid[0] == std::min(anchor, kWindow) + kBlock);
      CHECK(std::vector<int32_t>(d.index.begin(), d.index.begin() + d.valid[0]) == wanted);
    }
  }
}

TEST_CASE("block rows are the anchor and noise at the following positions",
          "[ops][draft_prepare]") {
  OpFixture ops(1);
  Drafted d;
  d.AddSequence(0, 1, 30, true);
  d.Run(ops);
  CHECK(d.slot[0] == 1);
  CHECK(d.chain[0] == 71);
  for (int32_t k = 0; k < kBlock; ++k) {
    CHECK(d.token[N(k)] == (k == 0 ? 71 : kNoise));
    CHECK(d.position[N(k)] == 30 + k);
    CHECK(d.window_row[N(k)] == d.WindowRow(1, 30 + k));
  }
  CHECK(d.live.draft_sequences == 1);
  CHECK(d.live.draft_rows == kBlock);
  CHECK(d.live.rows == 7);
  CHECK(d.live.sequences == 3);
}

TEST_CASE("sequences that do not propose are packed out and the rest is inert",
          "[ops][draft_prepare]") {
  OpFixture ops(1);
  Drafted d;
  d.AddSequence(0, 3, 10, false);
  d.AddSequence(1, 0, 20, true);
  d.AddSequence(2, 2, 40, false);
  d.AddSequence(3, 1, 50, true);
  d.Run(ops);
  CHECK(d.live.draft_sequences == 2);
  CHECK(d.live.draft_rows == 2 * kBlock);
  CHECK(d.slot == std::vector<int32_t>{0, 1, -1, -1});
  CHECK(d.chain[0] == 70);
  CHECK(d.chain[kBlock + 1] == 71);
  CHECK(d.position[0] == 20);
  CHECK(d.position[kBlock] == 50);
  for (int32_t s = 2; s < kSequences; ++s) {
    CHECK(d.valid[N(s)] == 0);
    for (int32_t k = 0; k < kBlock; ++k) CHECK(d.window_row[N(s * kBlock + k)] == -1);
  }
}

TEST_CASE("only rows before the new length are committed to the draft context",
          "[ops][draft_prepare]") {
  OpFixture ops(1);
  for (int32_t accepted = 0; accepted <= 5; ++accepted) {
    Drafted d;
    d.AddSequence(0, 2, 100 + accepted + 1, true);  // verified 6 rows from position 100
    d.AddSequence(1, 0, 17, false);                 // a prefill chunk of 10 rows, all valid
    d.AddRows(0, 2, 100, 6);
    d.AddRows(6, 0, 7, 10);
    d.Run(ops);
    INFO("accepted " << accepted);
    for (int32_t i = 0; i < 6; ++i) {
      CHECK(d.commit_row[N(i)] == (i <= accepted ? d.WindowRow(2, 100 + i) : -1));
    }
    for (int32_t i = 0; i < 10; ++i) CHECK(d.commit_row[N(6 + i)] == d.WindowRow(0, 7 + i));
    for (int32_t i = 16; i < kRows; ++i) CHECK(d.commit_row[N(i)] == -1);
  }
}

}  // namespace
}  // namespace firesteel
