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
#include "kernels/ops/step_prepare/plan_records.h"

namespace firesteel {

struct PlanLimits {
  int32_t max_sequences = 0;  // sequences in one step == slots
  int32_t max_rows = 0;       // target rows in one step
  int32_t max_appends = 0;    // block table writes in one step
  int32_t max_logit_rows =
      0;  // rows that may reach the LM head; prompt scoring takes what verification leaves
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
  std::span<int32_t> tokens();       // [max_rows], indexed by target row; decode rows are not read
  std::span<SamplingRules> rules();  // [max_sequences], of new slots that have any
  std::span<const PlanNewSlot> new_slots() const;
  std::span<const PlanAppend> appends() const;
  std::span<const PlanSequence> sequences() const;
  std::span<const int32_t> tokens() const;
  std::span<const SamplingRules> rules() const;

  // What must be uploaded. The rules come last, so that a step without any does not carry their section.
  std::span<const std::byte> bytes() const;

  // Byte offset of each section for a given set of limits, shared with the device side.
  struct Layout {
    int64_t new_slots = 0;
    int64_t appends = 0;
    int64_t sequences = 0;
    int64_t tokens = 0;
    int64_t rules = 0;
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
