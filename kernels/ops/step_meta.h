// Device tables that live as long as the rank, and the per-step metadata that step_prepare derives from them and the
// uploaded plan. Built once per step, read by every layer; addresses never change.
//
// Padding is inert: a row at or past live->rows has slot -1, cache rows -1 and valid count 0.
#pragma once

#include <cstdint>

#include "kernels/ops/slot_sampling.h"

namespace firesteel {

inline constexpr int32_t kMaxCacheGroups = 4;
inline constexpr int32_t kMaxCompressors = 2;  // distinct compression ratios of one model

// One row per slot.
struct SlotTables {
  int32_t* length;  // [slots] committed positions P, whose caches are valid; the anchor sits at P
  int32_t* last_token;    // [slots] the anchor
  int32_t* draft_tokens;  // [slots, draft_length] proposals for positions P + 1 ...
  float*
      draft_probs;  // [slots, draft_length, vocab] what each proposal was drawn from; unused by greedy slots
  SlotSampling* sampling;  // [slots]
  SamplingRules* rules;    // [slots] entries counted in `sampling`; the rest is undefined
  // [slots, vocab] of slots whose sampling counts tokens, undefined for others. Prompt tokens enter as their rows are
  // run, output tokens as they are emitted; a rejected draft never does.
  uint8_t* prompt_seen;   // 1: the token is in the prompt
  int32_t* output_count;  // times the token was emitted
  int32_t*
      recent_tokens;  // [slots, kRecentTokens] the token at a position; kept for slots with bad words
  int32_t* block_table[kMaxCacheGroups];  // [slots, max_blocks[g]] block ids, -1 unmapped
  int32_t max_blocks[kMaxCacheGroups];
  int32_t block_tokens[kMaxCacheGroups];
  int32_t num_groups;
  int32_t num_slots;
  int32_t draft_length;  // K: columns of draft_tokens
  int32_t vocab;
};

struct LiveCounts {
  int32_t rows;        // target rows
  int32_t sequences;   // planned sequences
  int32_t logit_rows;  // rows that reach the LM head
  int32_t draft_sequences;
  int32_t draft_rows;   // draft_sequences * block rows
  int32_t commit_rows;  // target rows whose draft context is written: all of them, or none
};

// Live index rows of one attention class. The valid count is mandatory and separate from the padded width.
struct SparseRows {
  const int32_t*
      index;  // [rows, width] physical cache rows; entries at or past valid[r] are never read
  const int32_t* valid;  // [rows] live entries; 0 for a padding row
  int32_t width;         // row stride of `index`: layout, never a length
  int32_t max_valid =
      0;  // no valid[r] exceeds it, known to the host when it enqueues; 0: not known
};

struct MutableSparseRows {
  int32_t* index;  // [rows, width]
  int32_t* valid;  // [rows]
  int32_t width;
  SparseRows view() const { return {index, valid, width}; }
};

// Per target row.
struct RowMeta {
  int32_t* slot;        // [rows] -1 in padding
  int32_t* position;    // [rows] absolute
  int32_t* token;       // [rows]
  int32_t* sequence;    // [rows] index into SequenceMeta
  int32_t* window_row;  // [rows] physical row of the window group where this position's K/V goes
};

// Per planned sequence.
struct SequenceMeta {
  int32_t* slot;             // [sequences]
  int32_t* first_row;        // [sequences]
  int32_t* num_rows;         // [sequences]
  int32_t* start;            // [sequences] absolute position of the first row
  int32_t* num_drafts;       // [sequences] drafts under verification; -1 for a prefill chunk
  int32_t* first_logit_row;  // [sequences]
  int32_t* num_logit_rows;   // [sequences] 0: emits nothing
  int32_t* propose;          // [sequences]
  int32_t*
      next_token;  // [sequences] the known token behind the last row; -1: the last logit row emits one
};

// Per compression ratio.
struct CompressorMeta {
  int32_t ratio;              // 0: unused entry
  int32_t entries_per_block;  // compressed entries in one block of the context group
  int32_t* entry_row;         // [rows] physical row of the entry that this row completes, or -1
  int32_t* visible;           // [rows] complete entries that this row sees
  MutableSparseRows all;  // every visible entry, for layers without an indexer; width 0: not built
};

}  // namespace firesteel
