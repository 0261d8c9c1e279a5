// BlockPool: which blocks of one cache group are free. Ids and reference counts only; never an address, never bytes.
//
// Scheduler thread only. Invariants:
//   1. a block is free exactly when its reference count is 0.
//   2. num_free() + blocks with a positive count == num_blocks().
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/ids.h"

namespace firesteel {

class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  int32_t num_blocks() const { return static_cast<int32_t>(references_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t references(BlockId block) const { return references_[Index(block)]; }

  // A free block, now with one reference. REQUIRES: num_free() > 0.
  BlockId Allocate();

  // Drops one reference; the last one makes the block free. REQUIRES: references(block) > 0.
  void Release(BlockId block);

 private:
  static size_t Index(BlockId block) { return static_cast<size_t>(block.value); }

  std::vector<int32_t> references_;  // [num_blocks]
  std::vector<BlockId> free_;        // a stack: the block freed last is still warm in the caches
};

}  // namespace firesteel
