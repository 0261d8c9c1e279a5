// Measured time of a decode step by batch and verify length: what `--draft-length auto` decides from.
#pragma once

#include <cstdint>
#include <vector>

namespace firesteel {

struct StepCosts {
  std::vector<int32_t> sequences;  // measured batch sizes, ascending; empty: nothing was measured
  int32_t draft_length = 0;        // K
  std::vector<double> target_us;   // [sequences, K + 1] verify n = 0..K drafts without proposing
  std::vector<double> propose_us;  // [sequences] what proposing adds

  // Linear between measured sizes, constant outside. REQUIRES: not empty, 0 <= drafts <= draft_length.
  double TargetUs(int32_t batch, int32_t drafts) const;
  double ProposeUs(int32_t batch) const;
};

}  // namespace firesteel
