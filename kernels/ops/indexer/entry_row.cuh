// What the indexer's kernels share: which rows choose, where an entry of a row's slot is stored, and how scores are ordered.
// Some start early, so that what other kernels wrote is read past the L1 cache here.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/core/float_codec.h"
#include "kernels/core/math.h"
#include "kernels/ops/indexer/indexer.h"

namespace firesteel {

__device__ inline const int32_t* BlockTableOf(const IndexerArgs& a, int32_t slot) {
  return a.slots.block_table[a.context_group] + int64_t{slot} * a.slots.max_blocks[a.context_group];
}

__device__ inline int32_t EntryRow(const IndexerArgs& a, int32_t slot, int32_t entry) {
  return __ldcg(BlockTableOf(a, slot) + entry / a.entries_per_block) * a.entries_per_block +
         entry % a.entries_per_block;
}

// Rows that choose at all: those that see more entries than they may keep.
// REQUIRES: row < a.rows.
__device__ inline bool Chooses(const IndexerArgs& a, int64_t row) {
  // Of padding too: the two loads need not wait for each other.
  const int32_t visible = __ldcg(a.visible + row);
  return row < __ldcg(a.live) && visible > a.top_k;
}

// Larger scores have larger keys, all above 0. NaN ranks last, as -infinity, and -0 equals 0.
__device__ inline uint32_t OrderKey(float score) {
  if (isnan(score)) score = -INFINITY;
  const uint32_t bits = FloatBits(score + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

// The scratch holds scores as order keys, `at` counted from its first row.
__device__ inline void StoreScore(const IndexerArgs& a, int64_t at, float score) {
  reinterpret_cast<uint32_t*>(a.scores)[at] = OrderKey(score);
}

}  // namespace firesteel
