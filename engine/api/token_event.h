// What the engine tells the output side about a request, once per step in which something happened to it.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/ids.h"
#include "kernels/core/status.h"

namespace firesteel {

enum class FinishReason {
  kNone,     // more events follow
  kStop,     // a stop token was emitted
  kLength,   // max_tokens or the model's length limit reached
  kAborted,  // Abort() was called; no further tokens
  kError,    // the engine failed; `error` says why
};

struct TokenEvent {
  RequestId id;
  // New output tokens in order, already cut after the first stop token and at max_tokens.
  std::vector<int32_t> tokens;
  // True for a speculative round (a decode step); false for the step whose prompt rows gave the first token.
  bool is_round = false;
  int32_t drafted = 0;   // drafts verified in this round
  int32_t accepted = 0;  // drafts accepted and emitted: min(accepted by the verifier, tokens.size())
  FinishReason finish = FinishReason::kNone;
  Status error;
};

}  // namespace firesteel
