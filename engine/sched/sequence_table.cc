#include "engine/sched/sequence_table.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace firesteel {

SequenceTable::SequenceTable(int32_t num_slots) : slots_(static_cast<size_t>(num_slots)) {
  free_.reserve(slots_.size());
  running_.reserve(slots_.size());
  for (int32_t i = num_slots - 1; i >= 0; --i) free_.push_back(SlotId{i});
}

int32_t SequenceTable::num_live() const {
  return static_cast<int32_t>(
      std::count_if(running_.begin(), running_.end(),
                    [](const Sequence* sequence) { return !sequence->retiring(); }));
}

Sequence* SequenceTable::Find(RequestId id) const {
  const auto it = std::find_if(running_.begin(), running_.end(), [id](const Sequence* sequence) {
    return sequence->id() == id && !sequence->retiring();
  });
  return it == running_.end() ? nullptr : *it;
}

void SequenceTable::Place(std::unique_ptr<Sequence> sequence) {
  FIRESTEEL_CHECK(!free_.empty(), "no free slot");
  const SlotId slot = free_.back();
  free_.pop_back();
  sequence->TakeSlot(slot);
  const auto younger = std::find_if(running_.begin(), running_.end(), [&](const Sequence* other) {
    return other->arrival() > sequence->arrival();
  });
  running_.insert(younger, sequence.get());
  slots_[static_cast<size_t>(slot.value)] = std::move(sequence);
}

std::unique_ptr<Sequence> SequenceTable::Remove(const Sequence& sequence) {
  const SlotId slot = sequence.slot();
  FIRESTEEL_CHECK(slot.valid() && at(slot) == &sequence, "the sequence holds no slot");
  std::erase(running_, &sequence);
  free_.push_back(slot);
  return std::move(slots_[static_cast<size_t>(slot.value)]);
}

}  // namespace firesteel
