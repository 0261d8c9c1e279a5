// SequenceTable: the sequences that hold a slot. Owns them; scheduler thread only.
//
// Invariants: a slot is either free or held by one sequence whose slot() names it; running() is in arrival order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/sched/sequence.h"

namespace firesteel {

class SequenceTable {
 public:
  explicit SequenceTable(int32_t num_slots);

  int32_t num_slots() const { return static_cast<int32_t>(slots_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  const Sequence* at(SlotId slot) const { return slots_[static_cast<size_t>(slot.value)].get(); }

  // Oldest first; retiring sequences included. Valid until the next Place or Remove.
  std::span<Sequence* const> running() const { return running_; }

  // Sequences that are not retiring; only they own their request id.
  int32_t num_live() const;
  Sequence* Find(RequestId id) const;  // null when absent

  void Place(std::unique_ptr<Sequence> sequence);              // REQUIRES: num_free() > 0
  std::unique_ptr<Sequence> Remove(const Sequence& sequence);  // its slot is free afterwards

 private:
  std::vector<std::unique_ptr<Sequence>> slots_;
  std::vector<SlotId> free_;  // a stack: low slots are used first
  std::vector<Sequence*> running_;
};

}  // namespace firesteel
