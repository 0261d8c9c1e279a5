// The records inside an uploaded plan blob, shared by the host writer (engine/plan) and the kernels that read it.
#pragma once

#include <cstdint>

#include "kernels/ops/slot_sampling.h"

namespace firesteel {

struct PlanHeader {
  int64_t step = 0;
  int32_t num_sequences = 0;
  int32_t num_rows = 0;
  int32_t num_logit_rows = 0;
  int32_t num_new_slots = 0;
  int32_t num_appends = 0;
  int32_t num_rules = 0;       // SamplingRules that follow the tokens
  int32_t wants_logprobs = 0;  // 1: some sequence asked for log-probabilities of this step
  // 1: no committed row of this step enters the draft context.
  int32_t skips_draft_commit = 0;
};

// A slot that starts (or restarts after preemption) with this step.
struct PlanNewSlot {
  int32_t slot;
  int32_t length;  // positions whose caches are already valid (prefix hit); 0 otherwise
  int32_t rules;   // index into the plan's rules; -1: the request has none
  SlotSampling sampling;
};

// block_table[group][slot][index] = block. block -1 unmaps an entry.
struct PlanAppend {
  int32_t group;
  int32_t slot;
  int32_t index;
  int32_t block;
};

// One sequence's rows. Two forms:
//   prefill: num_drafts == -1. Rows are known tokens at start, start + 1, ...; their ids are in tokens[first_row...].
//   decode:  num_drafts >= 0. Rows are [anchor, draft 1 .. num_drafts]; ids and positions come from the slot table, so
//            num_rows == num_drafts + 1 and the host need not know them.
struct PlanSequence {
  int32_t slot;
  int32_t first_row;
  int32_t num_rows;
  int32_t start;            // absolute position of the first row (prefill); ignored for decode rows
  int32_t num_drafts;       // -1: prefill chunk
  int32_t first_logit_row;  // ignored when num_logit_rows == 0
  int32_t
      num_logit_rows;  // decode: num_drafts + 1; last prefill chunk: 1; scored prefill chunk: num_rows; else 0
  int32_t propose;  // 1: run the drafter after verification; 0: near the length limit, or K == 0
  int32_t next_token =
      -1;  // scored prefill chunk that is not the last: the known token behind it; else -1
};

}  // namespace firesteel
