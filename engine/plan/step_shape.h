// Padded sizes of one step. A shape is all that EnqueueStep sees, so whatever differs between two steps of one shape
// lives in device memory and never in captured arguments.
#pragma once

#include <compare>
#include <cstdint>

namespace firesteel {

struct StepShape {
  int32_t sequences = 0;   // padded sequence count: rows of SequenceResult, draft blocks
  int32_t rows = 0;        // padded target rows
  int32_t logit_rows = 0;  // padded rows that reach the LM head
  bool captured =
      false;  // true: a full-decode step that replays a graph; false: prefill or mixed, run eagerly

  friend auto operator<=>(const StepShape&, const StepShape&) = default;
};

}  // namespace firesteel
