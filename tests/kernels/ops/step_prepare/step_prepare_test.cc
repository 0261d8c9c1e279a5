#include "kernels/ops/step_prepare/step_prepare.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/ops/step_prepare/plan_records.h"
#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/slot_state.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kPaddedRows = 24;
constexpr int32_t kPaddedSequences = 5;
constexpr int32_t kPaddedLogits = 16;
constexpr int32_t kWindow = 6;
constexpr int32_t kWindowWidth = 8;
constexpr int32_t kWindowBlock = 4;
constexpr int32_t kContextBlock = 8;
constexpr int32_t kAllWidth = 20;
constexpr int32_t kGarbage = -99;

size_t N(int64_t i) { return static_cast<size_t>(i); }

struct Plan {
  PlanHeader header;
  std::vector<PlanNewSlot> new_slots;
  std::vector<PlanAppend> appends;
  std::vector<PlanSequence> sequences;
  std::vector<int32_t> tokens;
};

// Everything step_prepare reads and writes, with all outputs holding garbage before the call.
class Prepared {
 public:
  Prepared()
      : slots({.slots = 4,
               .draft_length = 3,
               .vocab = 600,
               .max_blocks = 8,
               .context_tokens = kContextBlock,
               .window_tokens = kWindowBlock}),
        rows(kPaddedRows),
        sequences(kPaddedSequences),
        logit_rows(kPaddedLogits, kGarbage),
        window_index(N(kPaddedRows * kWindowWidth), kGarbage),
        window_valid(kPaddedRows, kGarbage),
        all_index(N(kPaddedRows * kAllWidth), kGarbage),
        all_valid(kPaddedRows, kGarbage) {
    for (int32_t c = 0; c < 2; ++c) {
      entry_row[c].assign(kPaddedRows, kGarbage);
      visible[c].assign(kPaddedRows, kGarbage);
    }
    for (auto* v : {&rows.slot, &rows.position, &rows.token, &rows.sequence, &rows.window_row}) {
      v->assign(kPaddedRows, kGarbage);
    }
    for (auto* v : {&sequences.slot, &sequences.num_rows, &sequences.num_drafts,
                    &sequences.num_logit_rows, &sequences.propose}) {
      v->assign(kPaddedSequences, kGarbage);
    }
  }

  // Maps the first `blocks` blocks of a slot: window block i of slot s is 10 s + i, context block i
  // is 20 s + i.
  void MapBlocks(int32_t slot, int32_t blocks) {
    for (int32_t i = 0; i < blocks; ++i) {
      slots.window_table[N(slot * 8 + i)] = 10 * slot + i;
      slots.context_table[N(slot * 8 + i)] = 20 * slot + i;
    }
  }

  void Run(OpFixture& ops, Plan plan) {
    plan.header.num_new_slots = static_cast<int32_t>(plan.new_slots.size());
    plan.header.num_appends = static_cast<int32_t>(plan.appends.size());
    plan.header.num_sequences = static_cast<int32_t>(plan.sequences.size());
    for (const PlanSequence& s : plan.sequences) {
      plan.header.num_rows += s.num_rows;
      plan.header.num_logit_rows += s.num_logit_rows;
    }
    plan.tokens.resize(N(kPaddedRows), kGarbage);
    plan.header.num_rules = static_cast<int32_t>(rules.size());
    StepPrepareArgs a{};
    std::vector<std::byte> blob(4096);
    const auto put = [&](int64_t at, const void* data, size_t bytes) {
      if (bytes > 0) std::memcpy(blob.data() + at, data, bytes);
      return at;
    };
    put(0, &plan.header, sizeof(PlanHeader));
    a.new_slots_offset =
        put(256, plan.new_slots.data(), plan.new_slots.size() * sizeof(PlanNewSlot));
    a.appends_offset = put(1024, plan.appends.data(), plan.appends.size() * sizeof(PlanAppend));
    a.sequences_offset =
        put(2048, plan.sequences.data(), plan.sequences.size() * sizeof(PlanSequence));
    a.tokens_offset = put(3072, plan.tokens.data(), plan.tokens.size() * sizeof(int32_t));
    blob.resize(4096 + rules.size() * sizeof(SamplingRules));
    a.rules_offset = put(4096, rules.data(), rules.size() * sizeof(SamplingRules));
    a.plan = blob.data();
    a.slots = slots.tables();
    a.live = &live;
    a.rows = rows.meta();
    a.sequences = sequences.meta();
    a.logit_rows = logit_rows.data();
    a.window = {window_index.data(), window_valid.data(), kWindowWidth};
    a.compressors[0] = {4, kContextBlock / 4, entry_row[0].data(), visible[0].data(), {}};
    a.compressors[1] = {2,
                        kContextBlock / 2,
                        entry_row[1].data(),
                        visible[1].data(),
                        {all_index.data(), all_valid.data(), kAllWidth}};
    a.window_group = kWindowGroup;
    a.context_group = kContextGroup;
    a.window_tokens = kWindow;
    a.padded_rows = kPaddedRows;
    a.padded_sequences = kPaddedSequences;
    a.padded_logit_rows = kPaddedLogits;
    ops.device().kernels().step_prepare(ops.stream(), a);
  }

  void CheckRow(int32_t row, int32_t slot, int32_t position, int32_t token, int32_t sequence) {
    INFO("row " << row);
    CHECK(rows.slot[N(row)] == slot);
    CHECK(rows.position[N(row)] == position);
    CHECK(rows.token[N(row)] == token);
    CHECK(rows.sequence[N(row)] == sequence);
    const auto window_row = [&](int32_t p) {
      return slots.window_table[N(slot * 8 + p / kWindowBlock)] * kWindowBlock + p % kWindowBlock;
    };
    CHECK(rows.window_row[N(row)] == window_row(position));
    const int32_t keys = std::min(position + 1, kWindow);
    CHECK(window_valid[N(row)] == keys);
    for (int32_t i = 0; i < keys; ++i) {
      CHECK(window_index[N(row * kWindowWidth + i)] == window_row(position - keys + 1 + i));
    }
    for (int32_t c = 0; c < 2; ++c) {
      const int32_t ratio = c == 0 ? 4 : 2;
      const int32_t per_block = kContextBlock / ratio;
      const auto entry = [&](int32_t j) {
        return slots.context_table[N(slot * 8 + j / per_block)] * per_block + j % per_block;
      };
      const int32_t complete = (position + 1) / ratio;
      CHECK(visible[c][N(row)] == complete);
      CHECK(entry_row[c][N(row)] == ((position + 1) % ratio == 0 ? entry(complete - 1) : -1));
      if (c == 0) continue;
      CHECK(all_valid[N(row)] == complete);
      for (int32_t j = 0; j < complete; ++j) {
        CHECK(all_index[N(row * kAllWidth + j)] == entry(j));
      }
    }
  }

  void CheckPadding(int32_t first_row, int32_t first_sequence, int32_t first_logit_row) {
    for (int32_t r = first_row; r < kPaddedRows; ++r) {
      CHECK(rows.slot[N(r)] == -1);
      CHECK(rows.window_row[N(r)] == -1);
      CHECK(rows.sequence[N(r)] == -1);
      CHECK(rows.token[N(r)] == 0);
      CHECK(rows.position[N(r)] == 0);
      CHECK(window_valid[N(r)] == 0);
      CHECK(all_valid[N(r)] == 0);
      for (int32_t c = 0; c < 2; ++c) {
        CHECK(entry_row[c][N(r)] == -1);
        CHECK(visible[c][N(r)] == 0);
      }
    }
    for (int32_t s = first_sequence; s < kPaddedSequences; ++s) {
      CHECK(sequences.slot[N(s)] == -1);
      CHECK(sequences.num_rows[N(s)] == 0);
      CHECK(sequences.num_logit_rows[N(s)] == 0);
      CHECK(sequences.num_drafts[N(s)] == -1);
      CHECK(sequences.propose[N(s)] == 0);
    }
    for (int32_t i = first_logit_row; i < kPaddedLogits; ++i) CHECK(logit_rows[N(i)] == 0);
  }

  std::vector<SamplingRules> rules;  // of the plan
  SlotState slots;
  RowState rows;
  SequenceState sequences;
  LiveCounts live{kGarbage, kGarbage, kGarbage, kGarbage, kGarbage, kGarbage};
  std::vector<int32_t> logit_rows, window_index, window_valid, all_index, all_valid;
  std::vector<int32_t> entry_row[2], visible[2];
};

TEST_CASE("a prefill chunk takes its tokens and positions from the plan", "[ops][step_prepare]") {
  OpFixture ops(1);
  Prepared p;
  p.MapBlocks(2, 8);
  Plan plan;
  plan.sequences = {{2, 0, 20, 3, -1, 0, 0, 0}};
  for (int32_t i = 0; i < 20; ++i) plan.tokens.push_back(500 + i);
  p.Run(ops, plan);
  for (int32_t i = 0; i < 20; ++i) p.CheckRow(i, 2, 3 + i, 500 + i, 0);
  CHECK(p.live.rows == 20);
  CHECK(p.live.sequences == 1);
  CHECK(p.live.logit_rows == 0);
  CHECK(p.live.draft_sequences == 0);
  CHECK(p.live.draft_rows == 0);
  CHECK(p.live.commit_rows == 20);
  p.CheckPadding(20, 1, 0);
}

TEST_CASE("decode rows take position, anchor and drafts from the slot table",
          "[ops][step_prepare]") {
  OpFixture ops(1);
  Prepared p;
  p.MapBlocks(1, 8);
  p.slots.length[1] = 9;
  p.slots.last_token[1] = 42;
  p.slots.draft_tokens = {0, 0, 0, 7, 8, 9, 0, 0, 0, 0, 0, 0};
  Plan plan;
  plan.sequences = {{1, 0, 3, -12345, 2, 0, 3, 1}};  // the planned start is stale by contract
  p.Run(ops, plan);
  p.CheckRow(0, 1, 9, 42, 0);
  p.CheckRow(1, 1, 10, 7, 0);
  p.CheckRow(2, 1, 11, 8, 0);
  CHECK(p.sequences.start[0] == 9);
  CHECK(p.sequences.num_drafts[0] == 2);
  CHECK(p.sequences.propose[0] == 1);
  p.CheckPadding(3, 1, 3);
}

TEST_CASE("logit rows are the last rows of their sequences", "[ops][step_prepare]") {
  OpFixture ops(1);
  Prepared p;
  for (int32_t s = 0; s < 4; ++s) p.MapBlocks(s, 8);
  p.slots.length[3] = 5;
  Plan plan;
  plan.sequences = {{0, 0, 4, 0, -1, 0, 0, 0},   // a chunk that is not the last
                    {3, 4, 4, 0, 3, 0, 4, 1},    // verification
                    {2, 8, 6, 10, -1, 4, 1, 1},  // the last chunk of a prompt
                    {1, 14, 1, 0, 0, 5, 1, 0}};  // plain decoding
  plan.tokens.assign(24, 1);
  p.Run(ops, plan);
  CHECK(std::vector<int32_t>(p.logit_rows.begin(), p.logit_rows.begin() + 6) ==
        std::vector<int32_t>{4, 5, 6, 7, 13, 14});
  CHECK(p.live.rows == 15);
  CHECK(p.live.sequences == 4);
  CHECK(p.live.logit_rows == 6);
  for (int32_t s = 0; s < 4; ++s) {
    CHECK(p.sequences.slot[N(s)] == plan.sequences[N(s)].slot);
    CHECK(p.sequences.first_row[N(s)] == plan.sequences[N(s)].first_row);
    CHECK(p.sequences.num_rows[N(s)] == plan.sequences[N(s)].num_rows);
    CHECK(p.sequences.first_logit_row[N(s)] == plan.sequences[N(s)].first_logit_row);
    CHECK(p.sequences.num_logit_rows[N(s)] == plan.sequences[N(s)].num_logit_rows);
  }
  CHECK(p.sequences.start[2] == 10);
  p.CheckPadding(15, 4, 6);
}

TEST_CASE("a new slot forgets its former blocks and takes the plan's settings",
          "[ops][step_prepare]") {
  OpFixture ops(1);
  Prepared p;
  p.MapBlocks(1, 8);
  p.MapBlocks(2, 8);
  p.slots.length[2] = 11;
  const std::vector<int32_t> other(p.slots.window_table.begin() + 16,
                                   p.slots.window_table.begin() + 24);
  Plan plan;
  SlotSampling sampling;
  sampling.temperature = 0.75F;
  sampling.top_p = 0.9F;
  sampling.top_k = 40;
  sampling.seed = 0x123456789abcULL;
  plan.new_slots = {{1, 4, -1, sampling}};
  plan.appends = {{kWindowGroup, 1, 0, 77}, {kWindowGroup, 1, 1, 78}, {kContextGroup, 1, 0, 33}};
  plan.sequences = {{1, 0, 3, 4, -1, 0, 1, 0}};
  plan.tokens = {5, 6, 7};
  p.Run(ops, plan);
  CHECK(p.slots.length[1] == 4);
  CHECK(p.slots.sampling[1].temperature == 0.75F);
  CHECK(p.slots.sampling[1].top_p == 0.9F);
  CHECK(p.slots.sampling[1].top_k == 40);
  CHECK(p.slots.sampling[1].seed == 0x123456789abcULL);
  CHECK(p.slots.window_table[8] == 77);
  CHECK(p.slots.window_table[9] == 78);
  CHECK(p.slots.context_table[8] == 33);
  for (int32_t i = 2; i < 8; ++i) CHECK(p.slots.window_table[N(8 + i)] == -1);
  for (int32_t i = 1; i < 8; ++i) CHECK(p.slots.context_table[N(8 + i)] == -1);
  CHECK(std::vector<int32_t>(p.slots.window_table.begin() + 16,
                             p.slots.window_table.begin() + 24) == other);
  CHECK(p.slots.length[2] == 11);
  for (int32_t i = 0; i < 3; ++i) p.CheckRow(i, 1, 4 + i, 5 + i, 0);
}

SlotSampling Penalties(int32_t prompt_length) {
  SlotSampling sampling;
  sampling.presence_penalty = 1.0F;
  sampling.prompt_length = prompt_length;
  return sampling;
}

TEST_CASE("known tokens are counted once each, for any chunks", "[sampling][counts]") {
  OpFixture ops(1);
  // A sequence that was preempted after four output tokens: five prompt tokens, then those.
  const std::vector<int32_t> known = {7, 3, 7, 9, 2, 3, 5, 5, 11};
  for (const int32_t chunk : {1, 2, 4, 9}) {
    INFO("chunk " << chunk);
    Prepared p;
    p.MapBlocks(1, 8);
    for (int32_t start = 0; start < 9; start += chunk) {
      const int32_t rows = std::min(chunk, 9 - start);
      Plan plan;
      if (start == 0) {
        plan.new_slots = {{1, 0, -1, Penalties(5)}};
        for (int32_t i = 0; i < 8; ++i) plan.appends.push_back({kWindowGroup, 1, i, 10 + i});
        for (int32_t i = 0; i < 8; ++i) plan.appends.push_back({kContextGroup, 1, i, 20 + i});
      }
      plan.sequences = {{1, 0, rows, start, -1, 0, 0, 0}};
      plan.tokens.assign(known.begin() + start, known.begin() + start + rows);
      p.slots.length[1] = start;
      p.Run(ops, plan);
    }
    for (int32_t t = 0; t < 20; ++t) {
      INFO("token " << t);
      CHECK(p.slots.PromptSeen(1, t) == std::count(known.begin(), known.begin() + 5, t) > 0);
      CHECK(p.slots.OutputCount(1, t) == std::count(known.begin() + 5, known.end(), t));
    }
    // Nobody else's counts were touched.
    CHECK(p.slots.OutputCount(0, 7) == SlotState::kPoisonCount);
    CHECK(p.slots.OutputCount(2, 7) == SlotState::kPoisonCount);
  }
}

TEST_CASE("neither decode rows nor rows that are committed already are counted",
          "[sampling][counts]") {
  OpFixture ops(1);
  Prepared p;
  p.MapBlocks(1, 8);
  p.MapBlocks(2, 8);
  for (const int32_t slot : {1, 2}) {
    p.slots.sampling[N(slot)] = Penalties(2);
    p.slots.ClearCounts(slot);
  }
  p.slots.length = {0, 9, 6, 0};
  p.slots.last_token[1] = 42;
  p.slots.draft_tokens = {0, 0, 0, 7, 8, 9, 0, 0, 0, 0, 0, 0};
  Plan plan;
  plan.sequences = {{1, 0, 3, 0, 2, 0, 3, 1}, {2, 3, 4, 4, -1, 0, 0, 0}};
  plan.tokens = {0, 0, 0, 31, 32, 33, 34};  // positions 4 and 5 were run before
  p.Run(ops, plan);
  for (const int32_t t : {42, 7, 8, 9}) CHECK(p.slots.OutputCount(1, t) == 0);
  for (const int32_t t : {31, 32}) CHECK(p.slots.OutputCount(2, t) == 0);
  for (const int32_t t : {33, 34}) CHECK(p.slots.OutputCount(2, t) == 1);
}

TEST_CASE("a slot with bad words keeps its newest tokens by position", "[sampling][counts]") {
  OpFixture ops(1);
  Prepared p;
  p.MapBlocks(0, 8);
  p.MapBlocks(1, 8);
  p.rules.resize(2);
  p.rules[1].bad_end[0] = 2;
  p.rules[1].bad_token[0] = 17;
  SlotSampling sampling;
  sampling.num_bad_words = 1;
  p.slots.length = {9, 9, 0, 0};
  p.slots.sampling[1] = sampling;
  p.slots.last_token = {41, 42, 0, 0};
  p.slots.draft_tokens = {4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0};
  Plan plan;
  plan.new_slots = {{3, 0, 1, sampling}};
  plan.sequences = {{0, 0, 2, 0, 1, 0, 2, 0}, {1, 2, 3, 0, 2, 2, 3, 0}};
  p.Run(ops, plan);
  CHECK(p.slots.rules[3].bad_end[0] == 2);
  CHECK(p.slots.rules[3].bad_token[0] == 17);
  const auto recent = [&](int32_t slot, int32_t position) {
    return p.slots.recent_tokens[N(slot * kRecentTokens + position % kRecentTokens)];
  };
  CHECK(recent(1, 9) == 42);
  CHECK(recent(1, 10) == 7);
  CHECK(recent(1, 11) == 8);
  CHECK(recent(0, 9) == -1);
}

TEST_CASE("an append can unmap a block that has left the window", "[ops][step_prepare]") {
  OpFixture ops(1);
  Prepared p;
  p.MapBlocks(0, 8);
  p.slots.length[0] = 20;
  Plan plan;
  plan.appends = {{kWindowGroup, 0, 0, -1}, {kWindowGroup, 0, 5, 55}};
  plan.sequences = {{0, 0, 1, 0, 0, 0, 1, 0}};
  p.Run(ops, plan);
  CHECK(p.slots.window_table[0] == -1);
  p.CheckRow(0, 0, 20, 0, 0);
  CHECK(p.rows.window_row[0] == 55 * kWindowBlock);
}

TEST_CASE("an empty plan leaves nothing but padding", "[ops][step_prepare]") {
  OpFixture ops(1);
  Prepared p;
  p.Run(ops, Plan{});
  CHECK(p.live.rows == 0);
  CHECK(p.live.sequences == 0);
  p.CheckPadding(0, 0, 0);
}

}  // namespace
}  // namespace firesteel
