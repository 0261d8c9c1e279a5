#include "kernels/core/check.h"
#include "kernels/ops/draft_prepare/draft_prepare.h"
#include "kernels/ops/visibility.h"

namespace firesteel {
namespace {

int32_t WindowRow(const DraftPrepareArgs& a, int32_t slot, int32_t position) {
  const int32_t tokens = a.slots.block_tokens[a.window_group];
  const int32_t* table =
      a.slots.block_table[a.window_group] + int64_t{slot} * a.slots.max_blocks[a.window_group];
  const int32_t block = table[position / tokens];
  FIRESTEEL_DCHECK(block >= 0, "a draft block position has no cache block");
  return block * tokens + position % tokens;
}

}  // namespace

void DraftPrepareCpu(Stream&, const DraftPrepareArgs& a) {
  int32_t count = 0;
  for (int32_t s = 0; s < a.padded_sequences; ++s) {
    if (a.sequences.propose[s] == 0) continue;
    const int32_t slot = a.sequences.slot[s];
    const int32_t anchor = a.slots.length[slot];
    a.draft.slot[count] = slot;
    a.draft.chain[int64_t{count} * (a.block + 1)] = a.slots.last_token[slot];
    const KeyRange keys = SharedBlockWindow(anchor, a.block, a.window_tokens);
    int32_t* index = a.draft.keys.index + int64_t{count} * a.draft.keys.width;
    for (int32_t p = keys.begin; p < keys.end; ++p) index[p - keys.begin] = WindowRow(a, slot, p);
    a.draft.keys.valid[count] = keys.size();
    for (int32_t k = 0; k < a.block; ++k) {
      const int64_t row = int64_t{count} * a.block + k;
      a.draft.token[row] = k == 0 ? a.slots.last_token[slot] : a.noise_token;
      a.draft.position[row] = anchor + k;
      a.draft.window_row[row] = index[keys.size() - a.block + k];
    }
    ++count;
  }
  a.live->draft_sequences = count;
  a.live->draft_rows = count * a.block;
  for (int32_t s = count; s < a.padded_sequences; ++s) {
    a.draft.slot[s] = -1;
    a.draft.keys.valid[s] = 0;
    for (int32_t k = 0; k < a.block; ++k) {
      const int64_t row = int64_t{s} * a.block + k;
      a.draft.token[row] = a.noise_token;
      a.draft.position[row] = 0;
      a.draft.window_row[row] = -1;
    }
  }
  for (int32_t row = 0; row < a.padded_rows; ++row) {
    const int32_t slot = a.rows.slot[row];
    const bool committed = slot >= 0 && a.rows.position[row] < a.slots.length[slot];
    a.draft.commit_row[row] = committed ? a.rows.window_row[row] : -1;
  }
}

}  // namespace firesteel
