// Where the text of one generation goes: an HTTP answer, a JSON line, a test.
//
// Threads: every call comes from the output thread, which serves all requests, so an implementation must not block.
// Invariants: OnText is never called with empty text; OnFinish is the last call and comes exactly once, unless the
// request was never admitted (then the stream is destroyed without a call).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/api/token_event.h"
#include "kernels/core/status.h"

namespace firesteel {

struct GenerationResult {
  FinishReason finish = FinishReason::kNone;  // never kNone in OnFinish
  Status error;                               // why, for kError and kAborted
  std::string text;                           // all of it: the concatenation of the OnText calls
  std::vector<int32_t> output_ids;  // up to and including the token that completed a stop string
  // One per output id, and one per prompt id but the first, when the call asked for them; else empty.
  std::vector<TokenLogprobs> logprobs;
  std::vector<TokenLogprobs> prompt_logprobs;  // complete before the first OnText
  std::vector<int32_t>
      accepted_per_step;  // one entry per speculative round: drafts accepted and kept
  std::vector<int32_t> drafted_per_step;  // as accepted_per_step: drafts verified
  int64_t drafted = 0;                    // their sum
  int32_t prompt_tokens = 0;
};

class ResponseStream {
 public:
  virtual ~ResponseStream() = default;

  // Whole UTF-8 characters that no stop string can still claim. `so_far` is all there is up to this call, `text`
  // included; its finish is set when OnFinish follows at once.
  // Returns false when the consumer's bounded buffer is full or the consumer is gone: the request is then aborted.
  virtual bool OnText(std::string_view text, const GenerationResult& so_far) = 0;

  virtual void OnFinish(GenerationResult result) = 0;
};

}  // namespace firesteel
