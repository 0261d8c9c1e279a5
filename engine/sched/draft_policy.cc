#include "engine/sched/draft_policy.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace firesteel {
namespace {

// Weight of one observed round: the estimate follows the last few hundred rounds.
constexpr double kObservationWeight = 1.0 / 128.0;
// Before anything was seen each draft is taken to be accepted with this probability, so that drafting gets its chance.
constexpr double kPriorAcceptance = 0.7;
// Drafting must promise this much before it replaces plain decoding: timings are that noisy.
constexpr double kMargin = 1.03;
// Steps that a sequence may sit out between the first committed row and the probe.
constexpr int32_t kCommitSlack = 32;
// The round after a probe is judged before the context is given up again.
constexpr int32_t kStepsAfterProbe = 2;

}  // namespace

DraftPolicy DraftPolicy::Fixed(int32_t draft_length) {
  DraftPolicy policy;
  policy.draft_length_ = draft_length;
  return policy;
}

DraftPolicy DraftPolicy::Auto(const StepCosts& costs, int32_t window_tokens) {
  FIRESTEEL_CHECK(!costs.sequences.empty(), "an automatic draft length needs measured costs");
  DraftPolicy policy;
  policy.fixed_ = false;
  policy.draft_length_ = costs.draft_length;
  policy.costs_ = costs;
  policy.commit_lead_ = window_tokens + kCommitSlack;
  double survival = 1.0;
  for (double& s : policy.survival_) s = survival *= kPriorAcceptance;
  return policy;
}

int32_t DraftPolicy::Best(int32_t batch) const {
  double best_rate = kMargin / costs_.TargetUs(batch, 0);
  int32_t best = 0;
  double tokens = 1.0;
  for (int32_t n = 1; n <= draft_length_; ++n) {
    tokens += survival_[static_cast<size_t>(n - 1)];
    const double rate = tokens / (costs_.TargetUs(batch, n) + costs_.ProposeUs(batch));
    if (rate > best_rate) {
      best_rate = rate;
      best = n;
    }
  }
  return best;
}

int32_t DraftPolicy::Length(int32_t batch) const {
  if (fixed_) return draft_length_;
  // Drafts exist although drafting does not pay: a probe. It looks at all of them.
  const int32_t best = Best(batch);
  return best > 0 ? best : draft_length_;
}

bool DraftPolicy::ShouldPropose(int32_t batch) {
  if (draft_length_ == 0) return false;
  if (fixed_ || Best(batch) > 0) return true;
  if (++steps_since_probe_ < kProbeInterval) return false;
  steps_since_probe_ = 0;
  return true;
}

bool DraftPolicy::ShouldCommit(int32_t batch) const {
  if (fixed_ || Best(batch) > 0) return true;
  return steps_since_probe_ < kStepsAfterProbe ||
         kProbeInterval - steps_since_probe_ <= commit_lead_;
}

void DraftPolicy::Observe(int32_t drafted, int32_t accepted) {
  for (int32_t i = 0; i < drafted; ++i) {
    double& s = survival_[static_cast<size_t>(i)];
    s += kObservationWeight * ((accepted > i ? 1.0 : 0.0) - s);
  }
  // Positions that were not verified cannot survive more often than the last one that was.
  for (int32_t i = std::max(drafted, 1); i < kMaxDraftLength; ++i) {
    survival_[static_cast<size_t>(i)] =
        std::min(survival_[static_cast<size_t>(i)], survival_[static_cast<size_t>(i - 1)]);
  }
}

}  // namespace firesteel
