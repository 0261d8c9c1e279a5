// Drives a rank below the scheduler: known tokens in, logits, features and proposals out. For parity tests.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/exec/rank_state.h"

namespace firesteel {

class RankHarness {
 public:
  // Aborts the test program with the error's text when the model does not load.
  explicit RankHarness(const EngineOptions& options);
  RankHarness(const EngineOptions& options, std::unique_ptr<Device> device);

  RankState& state() { return *state_; }

  struct Pass {
    std::vector<float> logits;    // [rows, vocab] of every row
    std::vector<float> features;  // [rows, taps * hidden]
  };
  // Runs `tokens` from position 0 in `slot`, `chunk` rows a step (0: all at once), target only. Logits of all rows.
  Pass RunTarget(int32_t slot, std::span<const int32_t> tokens, int32_t chunk);

  struct Proposal {
    std::vector<int32_t> tokens;     // [K]
    std::vector<float> base_logits;  // [block, vocab]
    std::vector<float> confidence;   // [K]
  };
  // Commits the context [0, anchor_position) of `tokens` to the drafter and proposes from the given anchor token.
  Proposal Propose(int32_t slot, std::span<const int32_t> tokens, int32_t anchor_position,
                   int32_t chunk);
  // From now on Propose leaves rows of steps that end at or before this position out of the draft context.
  void SkipCommitsUpTo(int32_t position) { skip_commits_up_to_ = position; }

 private:
  // One step of prefill rows with logits for each row, target part only.
  TargetOut RunRows(int32_t slot, std::span<const int32_t> tokens, int32_t start, StepShape* shape);

  std::unique_ptr<RankState> state_;
  StepPlan plan_;
  int32_t skip_commits_up_to_ = 0;
};

}  // namespace firesteel
