// A verification step over any number of sequences, one slot each unless a test says otherwise.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/ops/verify/sequence_result.h"
#include "kernels/ops/verify/verify.h"
#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/kernels/support/slot_state.h"

namespace firesteel {

class VerifyFixture {
 public:
  VerifyFixture(int32_t sequences_in, int32_t draft_length_in, int32_t vocab_in)
      : num_sequences(sequences_in),
        draft_length(draft_length_in),
        vocab(vocab_in),
        slots({.slots = sequences_in, .draft_length = draft_length_in, .vocab = vocab_in}),
        sequences(sequences_in + kPadding),
        results(static_cast<size_t>(sequences_in + kPadding)) {
    logprobs.resize(static_cast<size_t>(sequences_in * (draft_length_in + 17)));
    for (LogprobRecord& r : logprobs) r.token = r.num_top = -99;
    for (SequenceResult& r : results) r.slot = r.num_tokens = r.accepted = r.drafted = -99;
  }
  static constexpr int32_t kPadding = 2;

  // Rows [anchor, draft 1 .. drafts] of `slot` at positions start ...; one row of logits per row.
  void AddDecode(int32_t slot, int32_t start, const std::vector<std::vector<float>>& rows,
                 int32_t drafts) {
    Add(slot, start, drafts + 1, drafts, rows);
  }
  // A prefill chunk of `count` rows; `rows` is empty, or the logits of its last row.
  void AddPrefill(int32_t slot, int32_t start, int32_t count,
                  const std::vector<std::vector<float>>& rows) {
    Add(slot, start, count, -1, rows);
  }
  // The same with a logit row per row: `tokens` are the chunk's, `next` the one behind it or -1.
  void AddScoredPrefill(int32_t slot, int32_t start, const std::vector<int32_t>& tokens,
                        const std::vector<std::vector<float>>& rows, int32_t next) {
    const size_t i = static_cast<size_t>(added_);
    Add(slot, start, static_cast<int32_t>(tokens.size()), -1, rows);
    sequences.next_token[i] = next;
    std::copy(tokens.begin(), tokens.end(), row_token.end() - static_cast<int64_t>(tokens.size()));
  }
  void SetDraft(int32_t slot, int32_t column, int32_t token, const std::vector<float>& q) {
    slots.draft_tokens[static_cast<size_t>(slot * draft_length + column)] = token;
    std::copy(q.begin(), q.end(), slots.Probs(slot, column));
  }
  void Run(OpFixture& ops) {
    VerifyArgs a{};
    a.logits = logits.data();
    a.sequences = sequences.meta();
    a.row_token = row_token.data();
    a.slots = slots.tables();
    a.results = results.data();
    a.logprobs = logprobs.data();
    a.live_sequences = &added_;
    a.padded_sequences = num_sequences + kPadding;
    scratch.assign(static_cast<size_t>(a.padded_sequences * vocab),
                   std::numeric_limits<float>::quiet_NaN());
    a.scratch = scratch.data();
    ops.device().kernels().verify(ops.stream(), a);
  }
  std::vector<int32_t> Tokens(int32_t index) const {
    const SequenceResult& r = results[static_cast<size_t>(index)];
    return std::vector<int32_t>(r.tokens, r.tokens + r.num_tokens);
  }

  int32_t num_sequences;
  int32_t draft_length;
  int32_t vocab;
  SlotState slots;
  SequenceState sequences;
  std::vector<SequenceResult> results;
  std::vector<LogprobRecord> logprobs;
  std::vector<int32_t> row_token;  // poison but for scored chunks
  std::vector<float> logits;
  std::vector<float> scratch;

 private:
  void Add(int32_t slot, int32_t start, int32_t num_rows, int32_t drafts,
           const std::vector<std::vector<float>>& rows) {
    const size_t i = static_cast<size_t>(added_++);
    sequences.slot[i] = slot;
    sequences.first_row[i] = static_cast<int32_t>(row_token.size());
    row_token.insert(row_token.end(), static_cast<size_t>(num_rows), -99);
    sequences.start[i] = start;
    sequences.num_rows[i] = num_rows;
    sequences.num_drafts[i] = drafts;
    sequences.first_logit_row[i] = static_cast<int32_t>(logits.size()) / vocab;
    sequences.num_logit_rows[i] = static_cast<int32_t>(rows.size());
    for (const std::vector<float>& row : rows) logits.insert(logits.end(), row.begin(), row.end());
  }
  int32_t added_ = 0;
};

// Logits whose best token is `token`.
inline std::vector<float> Favor(int32_t vocab, int32_t token) {
  std::vector<float> row(static_cast<size_t>(vocab), -1.0F);
  row[static_cast<size_t>(token)] = 2.0F;
  return row;
}

}  // namespace firesteel
