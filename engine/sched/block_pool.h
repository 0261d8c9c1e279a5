// BlockPool: which blocks of one cache group are free. Ids and reference counts only; never an address, never bytes.
//
// A free block is vacant (its bytes mean nothing) or cached: the prefix index still finds what it holds, so it is taken
// last, and the one that was released longest ago first. Scheduler thread only. Invariants:
//   1. a block is free exactly when its reference count is 0; a free one is either vacant or cached.
//   2. num_free() + blocks with a positive count == num_blocks().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/plan/ids.h"

namespace firesteel {

class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  int32_t num_blocks() const { return static_cast<int32_t>(references_.size()); }
  int32_t num_free() const { return num_vacant() + num_idle_; }
  int32_t num_vacant() const { return static_cast<int32_t>(vacant_.size()); }
  std::span<const BlockId> vacant() const { return vacant_; }
  int32_t references(BlockId block) const { return references_[Index(block)]; }
  bool cached(BlockId block) const { return cached_[Index(block)]; }

  // The free cached block that was released longest ago; invalid when there is none.
  BlockId OldestCached() const;

  // A vacant block, now with one reference. REQUIRES: num_vacant() > 0.
  BlockId Allocate();

  // One more reference to a block whose content is wanted. REQUIRES: cached(block).
  void Acquire(BlockId block);

  // Drops one reference; the last one makes the block free. REQUIRES: references(block) > 0.
  void Release(BlockId block);

  // The prefix index found a use for the content. REQUIRES: references(block) > 0.
  void SetCached(BlockId block);

  // The prefix index gave the content up; a free block becomes vacant. REQUIRES: cached(block).
  void ClearCached(BlockId block);

 private:
  static size_t Index(BlockId block) { return static_cast<size_t>(block.value); }
  void LinkNewest(int32_t block);
  void Unlink(int32_t block);

  std::vector<int32_t> references_;  // [num_blocks]
  std::vector<bool> cached_;         // [num_blocks]
  std::vector<BlockId> vacant_;      // a stack: the block freed last is still warm in the caches
  // Free cached blocks as a ring, oldest first; entry num_blocks is its head.
  std::vector<int32_t> next_, previous_;  // [num_blocks + 1]
  int32_t num_idle_ = 0;
};

}  // namespace firesteel
