// Between verification and drafting: which target rows are committed to the draft context, and the rows, positions and
// keys of every draft block. Built once per step, shared by all draft stages.
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"
#include "kernels/ops/step_meta.h"

namespace firesteel {

class Stream;

// Draft lane. Sequences that propose are packed to the front: block b owns rows [b * block, (b + 1) * block).
struct DraftMeta {
  int32_t* slot;      // [sequences]
  int32_t* chain;     // [sequences, block + 1] anchor, then the drafted tokens as they are chosen
  int32_t* token;     // [sequences * block] anchor, noise, noise, ...
  int32_t* position;  // [sequences * block] P, P + 1, ...
  int32_t*
      window_row;  // [sequences * block] where the block's own K/V goes; overwritten by later commits
  MutableSparseRows
      keys;  // [sequences] one shared list per block: up to `window` committed positions, then the block
  int32_t*
      commit_row;  // [target rows] window row of a committed row, -1 for a rejected or padding row
};

struct DraftPrepareArgs {
  SlotTables slots;  // length and last_token as verification left them
  SequenceMeta sequences;
  RowMeta rows;
  LiveCounts* live;  // draft counts are written
  DraftMeta draft;
  int32_t window_group;
  int32_t window_tokens;
  int32_t block;  // rows of a draft block (the checkpoint's block size)
  int32_t noise_token;
  int32_t padded_rows;
  int32_t padded_sequences;
};

void DraftPrepareCpu(Stream& stream, const DraftPrepareArgs& args);
void DraftPrepareCuda(Stream& stream, const DraftPrepareArgs& args);

}  // namespace firesteel
