// The "logprobs" objects of answers, in the two forms that OpenAI's routes have. Pure functions, any thread.
//
// Both list every output token, the end token included. Log-probabilities below -9999 (a probability of zero) are written
// as -9999, because JSON has no infinity.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/api/token_event.h"
#include "server/text/tokenizer.h"

namespace firesteel {

// {"content":[{token, logprob, bytes, top_logprobs}...],"refusal":null} of `logprobs[first...]`.
std::string ChatLogprobsJson(const Tokenizer& tokenizer, const std::vector<TokenLogprobs>& logprobs,
                             size_t first);

// What a completion reports on; null pointers are left out.
struct CompletionLogprobs {
  const std::vector<int32_t>* prompt_ids = nullptr;
  const std::vector<TokenLogprobs>* prompt_logprobs = nullptr;  // of prompt_ids[1...]
  const std::vector<TokenLogprobs>* logprobs = nullptr;
  size_t first = 0;  // of `logprobs`
};

// {tokens, token_logprobs, top_logprobs, text_offset}. The first prompt token has null for both numbers. `text_offset`
// counts characters from the start of the choice's text; it is read and moved on, for the next chunk.
std::string CompletionLogprobsJson(const Tokenizer& tokenizer, const CompletionLogprobs& reported,
                                   int64_t* text_offset);

// [null, {"ID": {logprob, rank, decoded_token}...}...]: the first prompt token has none; each other one has an entry for
// itself and for the most likely tokens at its place. vLLM's form.
std::string PromptLogprobsJson(const Tokenizer& tokenizer,
                               const std::vector<TokenLogprobs>& logprobs);

}  // namespace firesteel
