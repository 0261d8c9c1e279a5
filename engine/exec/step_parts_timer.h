// Times the halves of a decode step as graphs of their own, on a rank that serves nothing. The whole step, for the cost table
// of a running engine, is step_timer.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/exec/rank_state.h"
#include "engine/exec/step_timer.h"
#include "engine/plan/shape_table.h"
#include "engine/plan/step_plan.h"
#include "kernels/core/arena.h"

namespace firesteel {

class StepPartsTimer {
 public:
  // Synthetic: the caches hold random keys, so that a context is there once its blocks are mapped; tokens are random.
  // Otherwise prompts are run through the target first.
  StepPartsTimer(RankState& state, int32_t context, bool synthetic);

  struct Parts {
    double step_us = 0.0;
    double target_us = 0.0;
    double draft_us = 0.0;
    double prepare_us = 0.0;
    // Summed over the layers: experts that some row chose.
    int64_t target_experts = 0;
    int64_t draft_experts = 0;
    double cache_share = 1.0;
  };
  // REQUIRES: sequences <= slots, drafts <= K.
  Result<Parts> Time(int32_t sequences, int32_t drafts, int32_t repeats);

 private:
  Status MapContext(int32_t sequences);
  Status DrawTokens(int32_t sequences);
  void FillPlan(int32_t sequences, int32_t drafts);
  // The first slots as they were before their step; enqueued.
  void Rewind(int32_t sequences);
  Result<std::unique_ptr<Graph>> Capture(const std::function<void(StepContext&)>& enqueue);
  // Microseconds of one of `inner` replays between two waits, each behind a rewind if asked for.
  Result<double> Median(Graph& graph, int32_t sequences, bool rewind, int32_t inner,
                        int32_t repeats);
  Result<double> MedianStep(int32_t sequences, int32_t repeats);
  Status TimeHalves(int32_t sequences, int32_t repeats, Parts* parts);
  Status CountExperts(int32_t sequences, Parts* parts);

  RankState& state_;
  const int32_t context_;
  const bool synthetic_;
  StepTimer prompts_;
  ShapeTable shapes_;
  StepPlan plan_;
  int32_t mapped_ = 0;  // sequences whose blocks are in the tables
  std::vector<int32_t> lengths_;
  std::vector<int32_t> last_tokens_;
  std::vector<int32_t> draft_tokens_;  // [slots, K]
  std::vector<SequenceResult> results_;
};

}  // namespace firesteel
