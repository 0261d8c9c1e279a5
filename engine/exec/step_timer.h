// Times synthetic decode steps on a loaded rank. Leaves nothing behind that a later sequence could read: every slot that
// serves starts by having its tables rewritten.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/exec/rank_state.h"
#include "engine/plan/shape_table.h"
#include "engine/plan/step_plan.h"

namespace firesteel {

class StepTimer {
 public:
  // `context`: committed positions of each sequence while it is timed.
  StepTimer(RankState& state, int32_t context);

  struct Sample {
    double step_us;    // median of a whole step that proposes; equals target_us without a drafter
    double target_us;  // median of the same step without proposing
  };
  // Runs a prompt of the context's length in the first slots that have none yet.
  Status Prefill(int32_t sequences);

  // REQUIRES: sequences <= slots, drafts <= K.
  Result<Sample> Time(int32_t sequences, int32_t drafts, int32_t repeats);

 private:
  Result<double> TimeOnce(int32_t sequences, int32_t drafts, bool propose);
  Result<double> Median(int32_t sequences, int32_t drafts, bool propose, int32_t repeats);

  RankState& state_;
  int32_t context_;
  int32_t prefilled_ = 0;  // sequences whose context is in the caches
  ShapeTable shapes_;
  StepPlan plan_;
  std::vector<int32_t> lengths_;  // [slots] all `context`
  std::vector<SequenceResult> results_;
};

}  // namespace firesteel
