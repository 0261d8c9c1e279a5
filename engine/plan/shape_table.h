// ShapeTable: live counts of a step -> the padded StepShape that all ranks run. Constant after construction.
//
// Sequence counts are padded to 1, 2, 4, 8, 16, then steps of 8, and the number of slots itself. A step of decode
// rows only has (K + 1) rows per padded sequence, so its shape depends on the sequence count alone and can be a
// captured one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/plan/step_plan.h"
#include "engine/plan/step_shape.h"

namespace firesteel {

struct StepDemand {
  int32_t sequences = 0;
  int32_t rows = 0;
  int32_t logit_rows = 0;
  bool decode_only = false;
};

class ShapeTable {
 public:
  ShapeTable(const PlanLimits& limits, int32_t draft_length, bool graphs);

  std::span<const int32_t> sequence_sizes() const { return sequence_sizes_; }  // ascending

  // REQUIRES: 1 <= live.sequences <= limits.max_sequences, live.rows <= limits.max_rows.
  StepShape ShapeFor(const StepDemand& live) const;

  // Every captured shape that ShapeFor can return: the list that ranks walk at start-up. Empty without graphs.
  std::vector<StepShape> CapturedShapes() const;

 private:
  PlanLimits limits_;
  int32_t rows_per_sequence_;  // K + 1
  bool graphs_;
  std::vector<int32_t> sequence_sizes_;
};

}  // namespace firesteel
