// Who gets how many rows of the next step. A pure function of what the sequences want; blocks are looked at afterwards.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace firesteel {

struct RowDemand {
  bool decode = false;  // true: all rows or none; false: a prefill, any part helps
  int32_t rows = 0;     // decode: drafts + 1; prefill: known tokens not computed yet
};

struct RowGrant {
  int32_t demand = 0;  // index into the demands
  int32_t rows = 0;    // > 0
};

struct BatchLimits {
  int32_t row_budget = 0;     // rows of the whole step
  int32_t prefill_chunk = 0;  // prefill rows of one sequence
};

// Demands are in arrival order. Verify blocks are served first, then prefills share what is left, both oldest first.
// Overwrites `grants`, in the order in which rows are laid out.
void GrantRows(std::span<const RowDemand> demands, const BatchLimits& limits,
               std::vector<RowGrant>* grants);

}  // namespace firesteel
