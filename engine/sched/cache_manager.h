// CacheManager: one block table per (cache group, slot), kept ahead of what a step may write.
//
// Scheduler thread only. Every change that the ranks must see is written as a PlanAppend of the step being planned; a
// (group, slot, index) is written at most once per step, so ranks may apply the records in any order. Invariants:
//   1. a mapped block belongs to exactly one table entry (its reference count in the pool is 1).
//   2. a table's mapped entries are contiguous: released ones form a prefix.
//   3. a free slot's tables are empty.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/plan/cache_spec.h"
#include "engine/plan/ids.h"
#include "engine/plan/step_plan.h"
#include "engine/sched/block_pool.h"

namespace firesteel {

// The appends section of a plan while it is being filled.
class AppendList {
 public:
  explicit AppendList(std::span<PlanAppend> out) : out_(out) {}

  int32_t count() const { return count_; }
  int32_t room() const { return static_cast<int32_t>(out_.size()) - count_; }
  void Add(const PlanAppend& append);  // REQUIRES: room() > 0

 private:
  std::span<PlanAppend> out_;
  int32_t count_ = 0;
};

// Most blocks of a group that a sequence of `length` positions holds at a time when no step runs more than `rows` rows
// of it. A group that releases old blocks holds its window and one step, at the worst alignment.
int64_t BlocksToHold(const CacheGroupSpec& group, int32_t lookahead_tokens, int64_t length,
                     int32_t rows);

class CacheManager {
 public:
  // One block table. Entries below `first_mapped` were released while the sequence ran.
  struct BlockTable {
    std::vector<BlockId> blocks;
    int32_t first_mapped = 0;

    int32_t num_mapped() const { return static_cast<int32_t>(blocks.size()) - first_mapped; }
  };

  // num_blocks[group] is the capacity of the group's pool.
  CacheManager(const CacheSpec& spec, std::span<const int32_t> num_blocks, int32_t num_slots);

  int32_t num_groups() const { return static_cast<int32_t>(spec_.groups.size()); }
  int32_t num_slots() const { return num_slots_; }
  const CacheSpec& spec() const { return spec_; }
  const BlockPool& pool(int32_t group) const { return pools_[static_cast<size_t>(group)]; }
  const BlockTable& table(int32_t group, SlotId slot) const;

  // Rows that may follow `committed_length` positions with the blocks that are mapped, free, or that ReleaseOld would
  // free. May be negative.
  int32_t RowsThatFit(SlotId slot, int32_t committed_length) const;

  // Records that Reserve and ReleaseOld would write.
  int32_t AppendsToReserve(SlotId slot, int32_t length_upper_bound) const;
  int32_t AppendsToReleaseOld(SlotId slot, int32_t committed_length) const;

  // Maps blocks for positions [0, length_upper_bound + lookahead). REQUIRES: RowsThatFit and list->room() allow it, and
  // ReleaseOld was called if RowsThatFit counted on it.
  void Reserve(SlotId slot, int32_t length_upper_bound, AppendList* list);

  // Unmaps and frees the blocks whose positions are all older than committed_length - retained_tokens.
  void ReleaseOld(SlotId slot, int32_t committed_length, AppendList* list);

  // Frees every block of the slot. No records: nothing reads a slot's tables until it starts again.
  void ReleaseAll(SlotId slot);

 private:
  BlockTable& MutableTable(int32_t group, SlotId slot);
  int32_t EntriesFor(int32_t group, int32_t length_upper_bound) const;
  int32_t FirstRetainedEntry(int32_t group, SlotId slot, int32_t committed_length) const;

  // Constant after construction.
  CacheSpec spec_;
  int32_t num_slots_;

  std::vector<BlockPool> pools_;    // [groups]
  std::vector<BlockTable> tables_;  // [groups * slots]; capacity is kept when a slot changes hands
};

}  // namespace firesteel
