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

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.0F;
};

// Natural logarithms of the model's own probabilities, before the request's sampling options.
struct TokenLogprobs {
  int32_t token = 0;
  float logprob = 0.0F;
  int32_t rank = 0;               // 1: no token is more likely
  std::vector<TokenLogprob> top;  // best first, ties to the lower token; as many as were asked for
};

struct TokenEvent {
  RequestId id;
  // New output tokens in order, already cut after the first stop token and at max_tokens.
  std::vector<int32_t> tokens;
  // One entry per token of `tokens`, when the request asked for logprobs; empty otherwise.
  std::vector<TokenLogprobs> logprobs;
  // For the prompt tokens at positions prompt_logprobs_start, ... when the request asked for prompt_logprobs. Over all
  // events they cover positions 1 to the prompt's end once, in order. Such an event may have no tokens.
  std::vector<TokenLogprobs> prompt_logprobs;
  int32_t prompt_logprobs_start = 0;
  // True for a speculative round (a decode step); false for the step whose prompt rows gave the first token.
  bool is_round = false;
  int32_t drafted = 0;  // drafts verified in this round
  int32_t accepted =
      0;  // drafts accepted and emitted: min(accepted by the verifier, tokens.size())
  FinishReason finish = FinishReason::kNone;
  Status error;
};

}  // namespace firesteel
