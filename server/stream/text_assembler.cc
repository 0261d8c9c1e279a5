#include "server/stream/text_assembler.h"

#include <algorithm>
#include <utility>

namespace firesteel {

TextAssembler::TextAssembler(const Tokenizer* tokenizer, std::vector<std::string> stop,
                             int32_t prompt_tokens)
    : tokenizer_(tokenizer), matcher_(std::move(stop)) {
  result_.prompt_tokens = prompt_tokens;
}

std::string TextAssembler::Consume(const TokenEvent& event) {
  FIRESTEEL_CHECK(!done(), "a token event after the last one of its request");
  std::string released;
  int32_t kept = 0;
  result_.prompt_logprobs.insert(result_.prompt_logprobs.end(), event.prompt_logprobs.begin(),
                                 event.prompt_logprobs.end());
  // The token that ended the text is not part of it, whether or not it is a special one.
  const size_t num_text_tokens =
      event.tokens.size() - (event.finish == FinishReason::kStop && !event.tokens.empty() ? 1 : 0);
  for (const int32_t token : event.tokens) {
    result_.output_ids.push_back(token);
    if (++kept > static_cast<int32_t>(num_text_tokens)) break;
    released += matcher_.Push(decoder_.Push(tokenizer_->TokenBytes(token, false)));
    if (matcher_.matched()) break;
  }
  const size_t reported = std::min(event.logprobs.size(), static_cast<size_t>(kept));
  result_.logprobs.insert(result_.logprobs.end(), event.logprobs.begin(),
                          event.logprobs.begin() + static_cast<std::ptrdiff_t>(reported));
  if (event.is_round) {
    result_.accepted_per_step.push_back(std::min(event.accepted, kept));
    result_.drafted_per_step.push_back(event.drafted);
    result_.drafted += event.drafted;
  }
  if (!matcher_.matched() && event.finish != FinishReason::kNone) {
    // The end may complete a character (as U+FFFD), and that character may complete a stop string.
    released += matcher_.Push(decoder_.Finish());
    if (!matcher_.matched()) released += matcher_.Finish();
    result_.finish = event.finish;
    result_.error = event.error;
  }
  if (matcher_.matched()) {
    result_.finish = FinishReason::kStop;
    result_.error = Status::Ok();
  }
  result_.text += released;
  return released;
}

}  // namespace firesteel
