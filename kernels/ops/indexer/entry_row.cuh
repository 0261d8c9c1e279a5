// What the indexer's kernels share: which rows choose, and where an entry of a row's slot is stored.
#pragma once

#include <cstdint>

#include "kernels/core/math.h"
#include "kernels/ops/indexer/indexer.h"

namespace firesteel {

__device__ inline const int32_t* BlockTableOf(const IndexerArgs& a, int32_t slot) {
  return a.slots.block_table[a.context_group] + int64_t{slot} * a.slots.max_blocks[a.context_group];
}

__device__ inline int32_t EntryRow(const IndexerArgs& a, int32_t slot, int32_t entry) {
  return BlockTableOf(a, slot)[entry / a.entries_per_block] * a.entries_per_block +
         entry % a.entries_per_block;
}

// Rows that choose at all: those that see more entries than they may keep.
__device__ inline bool Chooses(const IndexerArgs& a, int64_t row) {
  return row < Min(*a.live, a.rows) && a.visible[row] > a.top_k;
}

}  // namespace firesteel
