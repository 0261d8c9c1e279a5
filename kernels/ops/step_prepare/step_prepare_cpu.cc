#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/ops/step_prepare/plan_records.h"
#include "kernels/ops/step_prepare/step_prepare.h"
#include "kernels/ops/visibility.h"

namespace firesteel {
namespace {

// Physical cache row of an absolute entry index, or -1 where the table has no block.
int32_t PhysicalRow(const SlotTables& slots, int32_t group, int32_t slot, int32_t entry,
                    int32_t entries_per_block) {
  const int32_t index = entry / entries_per_block;
  if (index >= slots.max_blocks[group]) return -1;
  const int32_t block =
      slots.block_table[group][static_cast<int64_t>(slot) * slots.max_blocks[group] + index];
  return block < 0 ? -1 : block * entries_per_block + entry % entries_per_block;
}

void StartSlot(const StepPrepareArgs& a, const PlanNewSlot& s) {
  a.slots.length[s.slot] = s.length;
  a.slots.last_token[s.slot] = 0;
  a.slots.sampling[s.slot] = s.sampling;
  if (s.rules >= 0) {
    const auto* rules = reinterpret_cast<const SamplingRules*>(a.plan + a.rules_offset);
    a.slots.rules[s.slot] = rules[s.rules];
  }
  if (s.sampling.counts_tokens()) {
    const int64_t vocab = a.slots.vocab;
    std::fill_n(a.slots.prompt_seen + s.slot * vocab, vocab, uint8_t{0});
    std::fill_n(a.slots.output_count + s.slot * vocab, vocab, 0);
  }
  for (int32_t g = 0; g < a.slots.num_groups; ++g) {
    int32_t* table = a.slots.block_table[g] + int64_t{s.slot} * a.slots.max_blocks[g];
    for (int32_t b = 0; b < a.slots.max_blocks[g]; ++b) table[b] = -1;
  }
}

void ApplySlotChanges(const StepPrepareArgs& a, const PlanHeader& header) {
  const auto* new_slots = reinterpret_cast<const PlanNewSlot*>(a.plan + a.new_slots_offset);
  for (int32_t i = 0; i < header.num_new_slots; ++i) {
    StartSlot(a, new_slots[i]);
  }
  const auto* appends = reinterpret_cast<const PlanAppend*>(a.plan + a.appends_offset);
  for (int32_t i = 0; i < header.num_appends; ++i) {
    const PlanAppend& p = appends[i];
    a.slots.block_table[p.group][int64_t{p.slot} * a.slots.max_blocks[p.group] + p.index] = p.block;
  }
}

void PrepareRow(const StepPrepareArgs& a, int32_t row, int32_t slot, int32_t position,
                int32_t token, int32_t sequence) {
  a.rows.slot[row] = slot;
  a.rows.position[row] = position;
  a.rows.token[row] = token;
  a.rows.sequence[row] = sequence;
  const int32_t block_tokens = a.slots.block_tokens[a.window_group];
  const KeyRange keys = CausalWindow(position, a.window_tokens);
  int32_t* index = a.window.index + int64_t{row} * a.window.width;
  for (int32_t p = keys.begin; p < keys.end; ++p) {
    index[p - keys.begin] = PhysicalRow(a.slots, a.window_group, slot, p, block_tokens);
    FIRESTEEL_DCHECK(index[p - keys.begin] >= 0, "a visible window position has no block");
  }
  a.window.valid[row] = keys.size();
  a.rows.window_row[row] = index[keys.size() - 1];
  for (const CompressorMeta& c : a.compressors) {
    if (c.ratio == 0) continue;
    const int32_t visible = VisibleEntries(position, c.ratio);
    c.visible[row] = visible;
    c.entry_row[row] =
        (position + 1) % c.ratio != 0
            ? -1
            : PhysicalRow(a.slots, a.context_group, slot, visible - 1, c.entries_per_block);
    if (c.all.width == 0) continue;
    int32_t* entries = c.all.index + int64_t{row} * c.all.width;
    for (int32_t j = 0; j < visible; ++j) {
      entries[j] = PhysicalRow(a.slots, a.context_group, slot, j, c.entries_per_block);
    }
    c.all.valid[row] = visible;
  }
}

// What the sampling rules must know of a row's token. A decode row is not counted: its anchor was when it was emitted, and
// its drafts are if they are accepted.
void NoteToken(const StepPrepareArgs& a, int32_t slot, int32_t position, int32_t token,
               bool decode) {
  const SlotSampling& sampling = a.slots.sampling[slot];
  if (sampling.num_bad_words > 0) {
    a.slots.recent_tokens[int64_t{slot} * kRecentTokens + position % kRecentTokens] = token;
  }
  if (decode || !sampling.counts_tokens() || position < a.slots.length[slot]) return;
  const int64_t at = int64_t{slot} * a.slots.vocab + token;
  if (position < sampling.prompt_length) {
    a.slots.prompt_seen[at] = 1;
  } else {
    ++a.slots.output_count[at];  // emitted before the sequence was preempted
  }
}

void PadRow(const StepPrepareArgs& a, int32_t row) {
  a.rows.slot[row] = -1;
  a.rows.position[row] = 0;
  a.rows.token[row] = 0;
  a.rows.sequence[row] = -1;
  a.rows.window_row[row] = -1;
  a.window.valid[row] = 0;
  for (const CompressorMeta& c : a.compressors) {
    if (c.ratio == 0) continue;
    c.visible[row] = 0;
    c.entry_row[row] = -1;
    if (c.all.width != 0) c.all.valid[row] = 0;
  }
}

}  // namespace

void StepPrepareCpu(Stream&, const StepPrepareArgs& a) {
  const PlanHeader& header = *reinterpret_cast<const PlanHeader*>(a.plan);
  ApplySlotChanges(a, header);
  *a.live = LiveCounts{header.num_rows,
                       header.num_sequences,
                       header.num_logit_rows,
                       0,
                       0,
                       header.skips_draft_commit != 0 ? 0 : header.num_rows};
  const auto* planned = reinterpret_cast<const PlanSequence*>(a.plan + a.sequences_offset);
  const auto* tokens = reinterpret_cast<const int32_t*>(a.plan + a.tokens_offset);
  for (int32_t s = 0; s < header.num_sequences; ++s) {
    const PlanSequence& p = planned[s];
    const bool decode = p.num_drafts >= 0;
    const int32_t start = decode ? a.slots.length[p.slot] : p.start;
    a.sequences.slot[s] = p.slot;
    a.sequences.first_row[s] = p.first_row;
    a.sequences.num_rows[s] = p.num_rows;
    a.sequences.start[s] = start;
    a.sequences.num_drafts[s] = p.num_drafts;
    a.sequences.first_logit_row[s] = p.first_logit_row;
    a.sequences.num_logit_rows[s] = p.num_logit_rows;
    a.sequences.propose[s] = p.propose;
    a.sequences.next_token[s] = p.next_token;
    for (int32_t i = 0; i < p.num_rows; ++i) {
      const int32_t row = p.first_row + i;
      int32_t token;
      if (!decode) {
        token = tokens[row];
      } else if (i == 0) {
        token = a.slots.last_token[p.slot];
      } else {
        token = a.slots.draft_tokens[int64_t{p.slot} * a.slots.draft_length + i - 1];
      }
      PrepareRow(a, row, p.slot, start + i, token, s);
      NoteToken(a, p.slot, start + i, token, decode);
    }
    for (int32_t i = 0; i < p.num_logit_rows; ++i) {
      a.logit_rows[p.first_logit_row + i] = p.first_row + p.num_rows - p.num_logit_rows + i;
    }
  }
  for (int32_t s = header.num_sequences; s < a.padded_sequences; ++s) {
    a.sequences.slot[s] = -1;
    a.sequences.num_rows[s] = 0;
    a.sequences.num_drafts[s] = -1;
    a.sequences.num_logit_rows[s] = 0;
    a.sequences.propose[s] = 0;
    a.sequences.next_token[s] = -1;
  }
  for (int32_t row = header.num_rows; row < a.padded_rows; ++row) PadRow(a, row);
  for (int32_t i = header.num_logit_rows; i < a.padded_logit_rows; ++i) a.logit_rows[i] = 0;
}

}  // namespace firesteel
