#include "engine/plan/shape_table.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/core/math.h"

namespace firesteel {
namespace {

// Rows of eager steps are padded to whole tiles of the row-wise kernels.
constexpr int32_t kRowMultiple = 16;

}  // namespace

ShapeTable::ShapeTable(const PlanLimits& limits, int32_t draft_length, bool graphs)
    : limits_(limits), rows_per_sequence_(draft_length + 1), graphs_(graphs) {
  for (int32_t size = 1; size < limits.max_sequences; size = size < 16 ? size * 2 : size + 8) {
    sequence_sizes_.push_back(size);
  }
  sequence_sizes_.push_back(limits.max_sequences);
}

StepShape ShapeTable::ShapeFor(const StepDemand& live) const {
  FIRESTEEL_DCHECK(live.sequences >= 1 && live.sequences <= limits_.max_sequences &&
                       live.rows <= limits_.max_rows,
                   "live counts exceed the plan's limits");
  StepShape shape;
  shape.sequences =
      *std::lower_bound(sequence_sizes_.begin(), sequence_sizes_.end(), live.sequences);
  const int32_t full_rows = shape.sequences * rows_per_sequence_;
  if (live.decode_only && full_rows <= limits_.max_rows) {
    shape.rows = full_rows;
    shape.logit_rows = full_rows;
    shape.captured = graphs_;
    return shape;
  }
  shape.rows = Min(RoundUp(live.rows, kRowMultiple), limits_.max_rows);
  // A scored prompt may take more than the verify blocks would.
  shape.logit_rows = Min(Max(full_rows, live.logit_rows), shape.rows);
  return shape;
}

std::vector<StepShape> ShapeTable::CapturedShapes() const {
  std::vector<StepShape> shapes;
  for (const int32_t size : sequence_sizes_) {
    const StepShape shape = ShapeFor({size, size, size, true});
    if (shape.captured) shapes.push_back(shape);
  }
  return shapes;
}

}  // namespace firesteel
