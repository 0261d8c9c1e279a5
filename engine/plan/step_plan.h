// StepPlan: everything a rank needs to know about one step, as one flat blob that is uploaded by a single copy.
//
// Sections sit at offsets that depend only on PlanLimits, so the device address of each section never changes and
// captured kernels can read it. Invariants:
//   1. sequences are listed in row order; their rows are contiguous and cover [0, header.num_rows).
//   2. a slot appears at most once per step.
//   3. block appends are applied before any row of the step is processed.
// Written by the scheduler thread, read-only after publication.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/plan/ids.h"
#include "engine/plan/step_shape.h"
#include "kernels/core/status.h"

namespace firesteel {

struct PlanLimits {
  int32_t max_sequences = 0;  // sequences in one step == slots
  int32_t max_rows = 0;       // target rows in one step
  int32_t max_appends = 0;    // block table writes in one step
};

struct PlanHeader {
  int64_t step = 0;
  int32_t num_sequences = 0;
  int32_t num_rows = 0;
  int32_t num_logit_rows = 0;
  int32_t num_new_slots = 0;
  int32_t num_appends = 0;
  int32_t reserved = 0;
};

// A slot that starts (or restarts after preemption) with this step.
struct PlanNewSlot {
  int32_t slot;
  int32_t length;  // positions whose caches are already valid (prefix hit); 0 otherwise
  float temperature;
  float top_p;
  uint64_t seed;
};

// block_table[group][slot][index] = block. block -1 unmaps an entry.
struct PlanAppend {
  int32_t group;
  int32_t slot;
  int32_t index;
  int32_t block;
};

// One sequence's rows. Two forms:
//   prefill: num_drafts == -1. Rows are prompt tokens at start, start + 1, ...; their ids are in tokens[first_row...].
//   decode:  num_drafts >= 0. Rows are [anchor, draft 1 .. num_drafts]; ids and positions come from the slot table, so
//            num_rows == num_drafts + 1 and the host need not know them.
struct PlanSequence {
  int32_t slot;
  int32_t first_row;
  int32_t num_rows;
  int32_t start;            // absolute position of the first row (prefill); ignored for decode rows
  int32_t num_drafts;       // -1: prefill chunk
  int32_t first_logit_row;  // -1: emits nothing (a prefill chunk that is not the last)
  int32_t num_logit_rows;   // decode: num_drafts + 1; last prefill chunk: 1; else 0
  int32_t propose;          // 1: run the drafter after verification; 0: near the length limit, or K == 0
};

class StepPlan {
 public:
  StepPlan() = default;
  explicit StepPlan(const PlanLimits& limits);

  void Clear();  // header zeroed, counts zeroed; capacity and addresses stay

  const PlanLimits& limits() const { return limits_; }
  const StepShape& shape() const { return shape_; }
  void set_shape(const StepShape& shape) { shape_ = shape; }

  PlanHeader& header() { return *Section<PlanHeader>(0); }
  const PlanHeader& header() const { return *Section<PlanHeader>(0); }

  // Full-capacity sections; the header's counts say how many entries are live.
  std::span<PlanNewSlot> new_slots();
  std::span<PlanAppend> appends();
  std::span<PlanSequence> sequences();
  std::span<int32_t> tokens();  // [max_rows], indexed by target row; decode rows are not read
  std::span<const PlanNewSlot> new_slots() const;
  std::span<const PlanAppend> appends() const;
  std::span<const PlanSequence> sequences() const;
  std::span<const int32_t> tokens() const;

  std::span<const std::byte> bytes() const { return storage_; }

  // Byte offset of each section for a given set of limits, shared with the device side.
  struct Layout {
    int64_t new_slots = 0;
    int64_t appends = 0;
    int64_t sequences = 0;
    int64_t tokens = 0;
    int64_t total_bytes = 0;
  };
  static Layout LayoutFor(const PlanLimits& limits);

  // Checks the invariants above and every count, slot and index against the limits.
  Status Validate() const;

 private:
  template <typename T>
  T* Section(int64_t offset) {
    return reinterpret_cast<T*>(storage_.data() + offset);
  }
  template <typename T>
  const T* Section(int64_t offset) const {
    return reinterpret_cast<const T*>(storage_.data() + offset);
  }

  PlanLimits limits_;
  Layout layout_;
  StepShape shape_;
  std::vector<std::byte> storage_;
};

}  // namespace firesteel
