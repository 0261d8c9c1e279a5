// Slot tables with owned storage and two cache groups: 0 "context" and 1 "window".
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/ops/step_meta.h"

namespace firesteel {

inline constexpr int32_t kContextGroup = 0;
inline constexpr int32_t kWindowGroup = 1;

struct SlotShape {
  int32_t slots = 1;
  int32_t draft_length = 5;
  int32_t vocab = 8;
  int32_t max_blocks = 4;
  int32_t context_tokens = 32;
  int32_t window_tokens = 16;
};

class SlotState {
 public:
  explicit SlotState(const SlotShape& s)
      : length(N(s.slots), 0),
        last_token(N(s.slots), 0),
        draft_tokens(N(s.slots * s.draft_length), 0),
        draft_probs(N(s.slots * s.draft_length * s.vocab), 0.0F),
        sampling(N(s.slots)),
        rules(N(s.slots)),
        prompt_seen(N(s.slots * s.vocab), kPoisonSeen),
        output_count(N(s.slots * s.vocab), kPoisonCount),
        recent_tokens(N(s.slots * kRecentTokens), -1),
        context_table(N(s.slots * s.max_blocks), -1),
        window_table(N(s.slots * s.max_blocks), -1),
        shape_(s) {}
  SlotState(const SlotState&) = delete;
  SlotState& operator=(const SlotState&) = delete;

  SlotTables tables() {
    SlotTables t{};
    t.length = length.data();
    t.last_token = last_token.data();
    t.draft_tokens = draft_tokens.data();
    t.draft_probs = draft_probs.data();
    t.sampling = sampling.data();
    t.rules = rules.data();
    t.prompt_seen = prompt_seen.data();
    t.output_count = output_count.data();
    t.recent_tokens = recent_tokens.data();
    t.block_table[kContextGroup] = context_table.data();
    t.block_table[kWindowGroup] = window_table.data();
    t.max_blocks[kContextGroup] = t.max_blocks[kWindowGroup] = shape_.max_blocks;
    t.block_tokens[kContextGroup] = shape_.context_tokens;
    t.block_tokens[kWindowGroup] = shape_.window_tokens;
    t.num_groups = 2;
    t.num_slots = shape_.slots;
    t.draft_length = shape_.draft_length;
    t.vocab = shape_.vocab;
    return t;
  }
  float* Probs(int32_t slot, int32_t column) {
    return &draft_probs[N((slot * shape_.draft_length + column) * shape_.vocab)];
  }

  // Puts a slot's counts to zero, as a start does for a request with penalties.
  void ClearCounts(int32_t slot) {
    std::fill_n(&prompt_seen[N(slot * shape_.vocab)], shape_.vocab, uint8_t{0});
    std::fill_n(&output_count[N(slot * shape_.vocab)], shape_.vocab, 0);
  }
  int32_t& OutputCount(int32_t slot, int32_t token) {
    return output_count[N(slot * shape_.vocab + token)];
  }
  uint8_t& PromptSeen(int32_t slot, int32_t token) {
    return prompt_seen[N(slot * shape_.vocab + token)];
  }

  // The counts of a slot that does not count hold these; whoever reads them gets a wrong answer.
  static constexpr uint8_t kPoisonSeen = 1;
  static constexpr int32_t kPoisonCount = 1 << 20;

  std::vector<int32_t> length, last_token, draft_tokens;
  std::vector<float> draft_probs;
  std::vector<SlotSampling> sampling;
  std::vector<SamplingRules> rules;
  std::vector<uint8_t> prompt_seen;
  std::vector<int32_t> output_count, recent_tokens;
  std::vector<int32_t> context_table, window_table;

 private:
  static size_t N(int32_t count) { return static_cast<size_t>(count); }
  SlotShape shape_;
};

// SequenceMeta with owned storage.
class SequenceState {
 public:
  explicit SequenceState(int32_t count)
      : slot(N(count), -1),
        first_row(N(count), 0),
        num_rows(N(count), 0),
        start(N(count), 0),
        num_drafts(N(count), -1),
        first_logit_row(N(count), 0),
        num_logit_rows(N(count), 0),
        propose(N(count), 0),
        next_token(N(count), -1) {}
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  SequenceMeta meta() {
    return {slot.data(),           first_row.data(),  num_rows.data(),
            start.data(),          num_drafts.data(), first_logit_row.data(),
            num_logit_rows.data(), propose.data(),    next_token.data()};
  }

  std::vector<int32_t> slot, first_row, num_rows, start, num_drafts, first_logit_row,
      num_logit_rows, propose, next_token;

 private:
  static size_t N(int32_t count) { return static_cast<size_t>(count); }
};

// RowMeta with owned storage.
class RowState {
 public:
  explicit RowState(int32_t count)
      : slot(N(count), -1),
        position(N(count), 0),
        token(N(count), 0),
        sequence(N(count), -1),
        window_row(N(count), -1) {}
  RowState(const RowState&) = delete;
  RowState& operator=(const RowState&) = delete;

  RowMeta meta() {
    return {slot.data(), position.data(), token.data(), sequence.data(), window_row.data()};
  }

  std::vector<int32_t> slot, position, token, sequence, window_row;

 private:
  static size_t N(int32_t count) { return static_cast<size_t>(count); }
};

}  // namespace firesteel
