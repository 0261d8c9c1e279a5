// Everything the scheduler is told once: what the ranks can hold and how batches may be formed. Constant afterwards.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/cache_spec.h"
#include "engine/plan/step_costs.h"
#include "engine/plan/step_plan.h"
#include "kernels/core/status.h"

namespace firesteel {

struct SchedulerConfig {
  // What the ranks have.
  CacheSpec cache;
  std::vector<int32_t> num_blocks;  // [groups] pool capacities
  PlanLimits limits;
  int32_t draft_length = 0;  // K: drafts per round at most
  StepCosts costs;  // measured when the draft length is chosen automatically; else empty: always K
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;  // prompt + output positions

  // How steps are formed.
  int32_t max_batched_tokens = 0;  // target rows in one step; never more than limits.max_rows
  int32_t prefill_chunk = 0;       // prompt rows of one sequence in one step
  int32_t max_queue = 0;           // requests beyond limits.max_sequences that may wait
  bool graphs = true;
  bool prefix_cache = true;  // keep blocks of known prefixes and share them

  int32_t row_budget() const;
  int32_t max_live_requests() const { return limits.max_sequences + max_queue; }
  // Rows that one sequence can have in one step: a prefill chunk or a verify block.
  int32_t max_rows_per_sequence() const;

  // Positions that draft blocks look back on: the longest window of a cache group.
  int32_t window_tokens() const;

  // Block appends that the last resort of the oldest sequence may take in one step: one row or verify block.
  int64_t least_appends() const;

  // InvalidArgument names the value at fault. A config that passes can always run one sequence alone.
  Status Validate() const;
};

}  // namespace firesteel
