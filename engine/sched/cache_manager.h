// CacheManager: one block table per (cache group, slot), kept ahead of what a step may write.
//
// Scheduler thread only. Every change that the ranks must see is written as a PlanAppend of the step being planned; a
// (group, slot, index) is written at most once per step, so ranks may apply the records in any order. Blocks of
// committed positions are indexed by content; a sequence that starts with a known prefix maps the same blocks. Nothing
// is copied, and a shared block is never written again: its positions are older than any row to come. Invariants:
//   1. a block's reference count is the number of table entries that map it; more than one only if it is indexed.
//   2. a table's mapped entries are contiguous: released ones form a prefix.
//   3. a free slot's tables are empty.
//   4. a pool's block is marked as cached exactly when the prefix index names it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/plan/cache_spec.h"
#include "engine/plan/ids.h"
#include "engine/plan/step_plan.h"
#include "engine/sched/block_pool.h"
#include "engine/sched/prefix_index.h"
#include "engine/sched/sequence.h"

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
  // One block table. Entries below `first_mapped` were released while the sequence ran, or a prefix hit left them out.
  struct BlockTable {
    std::vector<BlockId> blocks;
    int32_t first_mapped = 0;
    int32_t num_announced =
        0;  // entries whose records were written; shared ones wait for the slot's first step

    int32_t num_mapped() const { return static_cast<int32_t>(blocks.size()) - first_mapped; }
  };

  // num_blocks[group] is the capacity of the group's pool. Without `prefix_cache` nothing is indexed or shared.
  CacheManager(const CacheSpec& spec, std::span<const int32_t> num_blocks, int32_t num_slots,
               bool prefix_cache = false, PrefixIndex::HashFunction hash = PrefixIndex::HashTokens);

  int32_t num_groups() const { return static_cast<int32_t>(spec_.groups.size()); }
  int32_t num_slots() const { return num_slots_; }
  const CacheSpec& spec() const { return spec_; }
  const BlockPool& pool(int32_t group) const { return pools_[static_cast<size_t>(group)]; }
  const BlockTable& table(int32_t group, SlotId slot) const;
  const PrefixIndex* prefix_index() const { return index_.has_value() ? &*index_ : nullptr; }

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

  // The longest prefix of `tokens` that is cached, with `needs_drafts` for the draft stages too, and takes at most
  // max_records append records.
  PrefixHit Lookup(std::span<const int32_t> tokens, int32_t max_records,
                   bool needs_drafts = false) const;
  // Blocks of the hit that running sequences hold, so that sharing them takes none from the free ones.
  int32_t NumHeld(const PrefixHit& hit, int32_t group) const;
  // Maps the blocks of a hit, found by Lookup a moment ago. The next Reserve writes the records. REQUIRES: the slot's
  // tables are empty. Returns the position from which on the hit's window holds draft rows; 0: all of it does.
  int32_t Attach(SlotId slot, const PrefixHit& hit);
  // `tokens` are at the slot's committed positions, from 0 on: indexes the units that are complete now. Positions of `gap`
  // lack draft rows.
  void Commit(SlotId slot, std::span<const int32_t> tokens, const Sequence::DraftGap& gap = {});

 private:
  // How far a slot's tables are indexed.
  struct Chain {
    PrefixIndex::NodeRef last;
    int32_t units = 0;
  };

  BlockId Take(int32_t group);
  int32_t CountReleasable(int32_t group, SlotId slot, int32_t committed_length) const;
  int32_t IndexUnit(SlotId slot, int32_t parent, int32_t depth, std::span<const int32_t> tokens,
                    const Sequence::DraftGap& gap);
  BlockTable& MutableTable(int32_t group, SlotId slot);
  int32_t EntriesFor(int32_t group, int32_t length_upper_bound) const;
  int32_t FirstRetainedEntry(int32_t group, SlotId slot, int32_t committed_length) const;

  // Constant after construction.
  CacheSpec spec_;
  int32_t num_slots_;

  std::vector<BlockPool> pools_;    // [groups]
  std::vector<BlockTable> tables_;  // [groups * slots]; capacity is kept when a slot changes hands

  std::optional<PrefixIndex> index_;
  std::vector<Chain> chains_;                        // [slots]
  std::vector<PrefixIndex::GroupBlock> left_index_;  // reused by every eviction
};

}  // namespace firesteel
