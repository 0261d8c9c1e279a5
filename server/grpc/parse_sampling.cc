#include "server/grpc/parse_sampling.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "server/grpc/parse_request.h"
#include "server/stream/bad_words.h"

namespace firesteel {

namespace {

// As float, like the values: a bound such as 1e-6 is itself allowed. Negated so that NaN is refused too.
Status ReadFloat(const char* name, bool present, float value, double low, double high, float* out) {
  if (!present) return Status::Ok();
  if (!(value >= static_cast<float>(low) && value <= static_cast<float>(high))) {
    return InvalidArgument("sampling." + std::string(name) + " is " + std::to_string(value) +
                           ", needs " + std::to_string(low) + " to " + std::to_string(high));
  }
  *out = value;
  return Status::Ok();
}

Status ReadInt(const char* name, bool present, int32_t value, int32_t low, int32_t high,
               int32_t* out) {
  if (!present) return Status::Ok();
  if (value < low || value > high) {
    return InvalidArgument("sampling." + std::string(name) + " is " + std::to_string(value) +
                           ", needs " + std::to_string(low) + " to " + std::to_string(high));
  }
  *out = value;
  return Status::Ok();
}

// The engine's limits on counts and lengths; `only` has nothing but the field in question.
Status CheckEngineLimits(const char* name, const SamplingParams& only) {
  Status status = only.Validate();
  if (status.ok()) return status;
  return InvalidArgument("sampling." + std::string(name) + ": " + status.message());
}

Status ReadLogitBias(const v1::SamplingOptions& options, int32_t vocab_size,
                     std::map<int32_t, float>* out) {
  SamplingParams only;
  // Ordered first, so that the same message always gets the same error.
  only.logit_bias.insert(options.logit_bias().begin(), options.logit_bias().end());
  for (const auto& entry : only.logit_bias) {
    if (entry.first >= 0 && entry.first < vocab_size) continue;
    return InvalidArgument("sampling.logit_bias has the key " + std::to_string(entry.first) +
                           ", needs a token id in 0.." + std::to_string(vocab_size - 1));
  }
  FIRESTEEL_RETURN_IF_ERROR(CheckEngineLimits("logit_bias", only));
  *out = std::move(only.logit_bias);
  return Status::Ok();
}

Status ReadBadWords(const v1::SamplingOptions& options, const Tokenizer& tokenizer,
                    std::vector<std::vector<int32_t>>* out) {
  SamplingParams only;
  for (const std::string& word : options.bad_words()) {
    const Status added = AddBadWord(tokenizer, word, &only.bad_words);
    if (!added.ok()) return InvalidArgument("sampling.bad_words: " + added.message());
  }
  FIRESTEEL_RETURN_IF_ERROR(CheckEngineLimits("bad_words", only));
  *out = std::move(only.bad_words);
  return Status::Ok();
}

Status ReadStop(const v1::SamplingOptions& options, std::vector<std::string>* stop) {
  if (options.stop().size() > static_cast<int>(kMaxStopStrings)) {
    return InvalidArgument("sampling.stop has " + std::to_string(options.stop().size()) +
                           " strings, needs at most " + std::to_string(kMaxStopStrings));
  }
  for (const std::string& text : options.stop()) {
    if (text.empty() || text.size() > kMaxStopBytes) {
      return InvalidArgument("sampling.stop has a string of " + std::to_string(text.size()) +
                             " bytes, needs 1 to " + std::to_string(kMaxStopBytes));
    }
    stop->push_back(text);
  }
  return Status::Ok();
}

Status ReadStopTokenIds(const v1::SamplingOptions& options, int32_t vocab_size,
                        std::vector<int32_t>* out) {
  const auto& ids = options.stop_token_ids();
  if (ids.size() > static_cast<int>(kMaxStopTokenIds)) {
    return InvalidArgument("sampling.stop_token_ids has " + std::to_string(ids.size()) +
                           " ids, needs at most " + std::to_string(kMaxStopTokenIds));
  }
  FIRESTEEL_RETURN_IF_ERROR(CheckTokenIds("sampling.stop_token_ids", ids, vocab_size));
  out->assign(ids.begin(), ids.end());
  return Status::Ok();
}

Status ReadPenalties(const v1::SamplingOptions& options, SamplingParams* sampling) {
  FIRESTEEL_RETURN_IF_ERROR(ReadFloat("presence_penalty", options.has_presence_penalty(),
                                      options.presence_penalty(), -kLargestPenalty, kLargestPenalty,
                                      &sampling->presence_penalty));
  FIRESTEEL_RETURN_IF_ERROR(ReadFloat("frequency_penalty", options.has_frequency_penalty(),
                                      options.frequency_penalty(), -kLargestPenalty,
                                      kLargestPenalty, &sampling->frequency_penalty));
  return ReadFloat("repetition_penalty", options.has_repetition_penalty(),
                   options.repetition_penalty(), kSmallestRepetitionPenalty,
                   kLargestRepetitionPenalty, &sampling->repetition_penalty);
}

Status ReadCounts(const v1::SamplingOptions& options, SamplingParams* sampling) {
  FIRESTEEL_RETURN_IF_ERROR(
      ReadInt("top_k", options.has_top_k(), options.top_k(), -1, INT32_MAX, &sampling->top_k));
  sampling->top_k = std::max(sampling->top_k, 0);  // -1 is "all" too
  FIRESTEEL_RETURN_IF_ERROR(ReadInt("logprobs", options.has_logprobs(), options.logprobs(), 0,
                                    kMostLogprobs, &sampling->logprobs));
  FIRESTEEL_RETURN_IF_ERROR(ReadInt("prompt_logprobs", options.has_prompt_logprobs(),
                                    options.prompt_logprobs(), 0, kMostLogprobs,
                                    &sampling->prompt_logprobs));
  const int32_t least = options.has_prompt_logprobs() ? 0 : 1;
  sampling->max_tokens = 0;
  FIRESTEEL_RETURN_IF_ERROR(ReadInt("max_tokens", options.has_max_tokens(), options.max_tokens(),
                                    least, INT32_MAX, &sampling->max_tokens));
  return ReadInt("min_tokens", true, options.min_tokens(), 0, INT32_MAX, &sampling->min_tokens);
}

}  // namespace

Status ReadSampling(const v1::SamplingOptions& options, const Tokenizer& tokenizer,
                    int32_t vocab_size, GenerationCall* call) {
  SamplingParams& sampling = call->sampling;
  FIRESTEEL_RETURN_IF_ERROR(ReadFloat("temperature", options.has_temperature(),
                                      options.temperature(), 0.0, kLargestTemperature,
                                      &sampling.temperature));
  FIRESTEEL_RETURN_IF_ERROR(ReadFloat("top_p", options.has_top_p(), options.top_p(), kSmallestTopP,
                                      1.0, &sampling.top_p));
  FIRESTEEL_RETURN_IF_ERROR(
      ReadFloat("min_p", options.has_min_p(), options.min_p(), 0.0, 1.0, &sampling.min_p));
  FIRESTEEL_RETURN_IF_ERROR(ReadPenalties(options, &sampling));
  FIRESTEEL_RETURN_IF_ERROR(ReadCounts(options, &sampling));
  FIRESTEEL_RETURN_IF_ERROR(ReadLogitBias(options, vocab_size, &sampling.logit_bias));
  FIRESTEEL_RETURN_IF_ERROR(ReadBadWords(options, tokenizer, &sampling.bad_words));
  sampling.seed = options.has_seed() ? options.seed() : DrawSeed();
  sampling.ignore_eos = options.ignore_eos();
  FIRESTEEL_RETURN_IF_ERROR(ReadStopTokenIds(options, vocab_size, &call->stop_token_ids));
  return ReadStop(options, &call->stop);
}

}  // namespace firesteel
