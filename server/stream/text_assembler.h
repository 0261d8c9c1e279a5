// Turns the token events of one request into text, ids, log-probabilities and acceptance counts, one token at a time.
//
// A round can bring several tokens; they are looked at singly, so that a stop string inside an accepted block cuts the
// ids, their log-probabilities, the text and the acceptance count at the same token as one-token decoding would.
// Threads: one owner, the output thread.
#pragma once

#include <string>
#include <vector>

#include "engine/api/token_event.h"
#include "server/stream/response_stream.h"
#include "server/text/incremental_decoder.h"
#include "server/text/stop_matcher.h"
#include "server/text/tokenizer.h"

namespace firesteel {

class TextAssembler {
 public:
  // `tokenizer` outlives the assembler.
  TextAssembler(const Tokenizer* tokenizer, std::vector<std::string> stop, int32_t prompt_tokens);

  // Consumes one event and returns the text it released (possibly empty). After a stop string completed, or an event
  // with a finish, done() is true and further events are a caller's error.
  std::string Consume(const TokenEvent& event);

  bool done() const { return result_.finish != FinishReason::kNone; }
  bool stopped_by_string() const { return matcher_.matched(); }
  const GenerationResult& result() const { return result_; }
  GenerationResult TakeResult() { return std::move(result_); }

 private:
  const Tokenizer* tokenizer_;
  IncrementalDecoder decoder_;
  StopMatcher matcher_;
  GenerationResult result_;
};

}  // namespace firesteel
