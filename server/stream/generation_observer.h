// Told about the generations that pass the output thread: what a metrics page is made of.
//
// Threads: OnRefused runs on the thread that submitted, at any time and in parallel; the others on the output thread.
// Nothing here may block.
#pragma once

#include <cstdint>

#include "engine/api/token_event.h"
#include "kernels/core/status.h"

namespace firesteel {

// Seconds since the call was submitted, unless stated otherwise.
struct GenerationTimes {
  double first_token_s = 0.0;  // 0: there was no token
  double last_token_s = 0.0;
  double end_s = 0.0;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
};

class GenerationObserver {
 public:
  virtual ~GenerationObserver() = default;
  virtual void OnRefused(StatusCode reason) = 0;
  virtual void OnFirstToken(double seconds) = 0;
  // `tokens` came together, `seconds` after the ones before them.
  virtual void OnTokens(double seconds, int64_t tokens) = 0;
  virtual void OnFinish(FinishReason reason, const GenerationTimes& times) = 0;
};

}  // namespace firesteel
