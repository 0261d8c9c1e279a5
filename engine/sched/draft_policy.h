// Chooses how many drafts a round verifies, 0..K, from the measured step costs and the acceptance seen so far.
//
// For n drafts a round yields 1 + S_1 + ... + S_n tokens per sequence, S_i being the probability that the first i drafts
// are all accepted, and costs target(batch, n) plus, for n > 0, the proposal of the next block. The n with the most
// tokens per microsecond wins; n = 0 is plain decoding. The choice looks only at finished rounds, never at the drafts it
// is about to judge, so it cannot bias the output. Scheduler thread only.
#pragma once

#include <array>
#include <cstdint>

#include "engine/plan/step_costs.h"
#include "engine/plan/step_result.h"

namespace firesteel {

class DraftPolicy {
 public:
  // Verifies always `draft_length` drafts: a fixed K.
  static DraftPolicy Fixed(int32_t draft_length);
  // REQUIRES: costs were measured. `window_tokens`: committed positions that a draft block looks back on.
  static DraftPolicy Auto(const StepCosts& costs, int32_t window_tokens);

  // Drafts to verify in a step of `batch` decoding sequences that have drafts.
  int32_t Length(int32_t batch) const;

  // Whether a step of `batch` sequences should propose drafts for the next round. While drafting does not pay, one round
  // in kProbeInterval still drafts, so that a change in acceptance is noticed. Counts the step.
  bool ShouldPropose(int32_t batch);

  // Whether the committed rows of a step of `batch` sequences should enter the draft context: while drafting pays, and
  // for as long before a probe as it takes to fill a window. Ask after ShouldPropose.
  bool ShouldCommit(int32_t batch) const;

  // A finished round: `accepted` of `drafted` drafts, before truncation at end tokens.
  void Observe(int32_t drafted, int32_t accepted);

  static constexpr int32_t kProbeInterval = 2048;

 private:
  int32_t Best(int32_t batch) const;

  bool fixed_ = true;
  int32_t draft_length_ = 0;
  int32_t commit_lead_ = 0;  // steps before a probe whose rows are committed
  StepCosts costs_;
  std::array<double, kMaxDraftLength> survival_{};  // [i]: the first i + 1 drafts are accepted
  int32_t steps_since_probe_ = 0;
};

}  // namespace firesteel
