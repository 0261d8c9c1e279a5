// Sequence: all host state of one accepted request. Scheduler thread only.
//
// `tokens` are the known tokens: the prompt, then what was emitted. `computed` counts the positions whose caches hold
// committed rows. There are two kinds of step for a sequence:
//   prefill: computed < known. Rows are known tokens from position `computed` on; the one that reaches the end emits.
//   decode:  computed == known - 1. The newest token (the anchor) has not been run; rows are the anchor and the drafts.
// A preempted sequence starts again as a prefill of everything it knows, so its next token is the one it would have
// had.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/api/request.h"
#include "engine/api/token_event.h"
#include "engine/plan/ids.h"
#include "kernels/ops/slot_sampling.h"

namespace firesteel {

enum class SequencePhase { kPrefill, kDecode };

class Sequence {
 public:
  // max_output: output tokens at most, already clipped to the model's length.
  Sequence(Request request, uint64_t arrival, int32_t max_output);

  // Constant after construction.
  RequestId id() const { return id_; }
  uint64_t arrival() const { return arrival_; }  // order of acceptance; kept through preemption
  const SamplingParams& sampling() const { return sampling_; }
  int32_t prompt_length() const { return prompt_length_; }
  int32_t max_length() const { return prompt_length_ + max_output_; }

  std::span<const int32_t> tokens() const { return tokens_; }
  int32_t known() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t emitted() const { return known() - prompt_length_; }
  int32_t remaining() const { return max_output_ - emitted(); }
  int32_t computed() const { return computed_; }
  SequencePhase phase() const { return phase_; }

  SlotId slot() const { return slot_; }
  bool announced() const { return announced_; }  // the ranks were told that the slot starts
  int32_t inflight() const { return inflight_; }
  bool retiring() const { return retiring_; }

  // The rows of the prompt must be scored: its log-probabilities are asked for and not all reported.
  bool ScoresPrompt() const {
    return sampling_.prompt_logprobs >= 0 && prompt_scored_ < prompt_length_;
  }
  int32_t prompt_scored() const {
    return prompt_scored_;
  }  // prompt positions reported, the first one included
  void ReportPromptUpTo(int32_t position) { prompt_scored_ = position; }

  // What the ranks are told when the slot starts.
  SlotSampling DeviceSampling() const;
  void WriteRules(SamplingRules* rules) const;

  // Drafts to verify in the next decode step.
  bool greedy() const { return sampling_.greedy(); }
  int32_t NumDrafts(int32_t draft_length) const;
  // Whether a step that emits should leave drafts behind: it emits at least one token, and then one must remain.
  bool ShouldPropose(int32_t draft_length) const { return draft_length > 0 && remaining() > 1; }

  void TakeSlot(SlotId slot) { slot_ = slot; }
  // The caches of the first `length` known tokens are there already, those of the draft stages from `draft_begin` on.
  // REQUIRES: nothing ran since TakeSlot.
  void StartAt(int32_t length, int32_t draft_begin);
  void OnPlanned();  // one step more in flight
  void OnStepDone() { --inflight_; }
  void Retire() { retiring_ = true; }
  // Forgets the slot and all computed positions. REQUIRES: inflight() == 0.
  void Preempt();

  // Tokens whose positions are committed: all computed ones, except those behind a cut output.
  std::span<const int32_t> committed_tokens() const {
    return tokens().first(static_cast<size_t>(computed_ < known() ? computed_ : known()));
  }

  // Rows of a prefill step are committed. Returns how many prompt positions were computed for the first time.
  int32_t CommitPrefill(int32_t rows);
  // The anchor and `accepted` drafts are committed.
  void CommitDecode(int32_t accepted) { computed_ += accepted + 1; }

  // Positions that the draft context lacks, from the first to the last.
  struct DraftGap {
    int32_t begin = 0;
    int32_t end = 0;
  };
  const DraftGap& draft_gap() const { return draft_gap_; }
  // The next `rows` positions are committed without their draft context.
  void SkipDraftRows(int32_t rows);
  // Whether a draft block would find all of the `window` positions before it.
  bool HasDraftWindow(int32_t window) const {
    return draft_gap_.end == 0 || computed_ - draft_gap_.end >= window;
  }

  struct Emission {
    int32_t num_tokens = 0;  // of the tokens given, after the cut
    FinishReason finish = FinishReason::kNone;
  };
  // Takes new tokens one by one, up to and including the first stop token or the last one allowed.
  Emission Emit(std::span<const int32_t> tokens, bool has_drafts);

 private:
  // Constant after construction.
  RequestId id_;
  uint64_t arrival_;
  SamplingParams sampling_;
  std::vector<int32_t> stop_tokens_;
  int32_t prompt_length_;
  int32_t max_output_;

  std::vector<int32_t> tokens_;
  int32_t computed_ = 0;
  int32_t prompt_high_water_ = 0;  // prompt positions computed at least once, or found in the cache
  int32_t prompt_scored_ = 1;      // the first position has no log-probability
  SequencePhase phase_ = SequencePhase::kPrefill;
  DraftGap draft_gap_;
  bool has_drafts_ = false;  // the device holds drafts for the next round
  SlotId slot_;
  bool announced_ = false;
  int32_t inflight_ = 0;
  bool retiring_ = false;
};

}  // namespace firesteel
