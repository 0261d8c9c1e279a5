#include "engine/api/sampling_params.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/ops/slot_sampling.h"
#include "kernels/ops/verify/sequence_result.h"

namespace firesteel {
namespace {

// Negated comparisons so that NaN is refused too.
Status CheckFloat(const std::string& name, float value, float low, float high, const char* needed) {
  if (value >= low && value <= high) return Status::Ok();
  return InvalidArgument(name + " is " + std::to_string(value) + ", needs " + needed);
}

Status CheckInt(const std::string& name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status::Ok();
  return InvalidArgument(name + " is " + std::to_string(value) + ", needs " + std::to_string(low) +
                         ".." + std::to_string(high));
}

Status CheckBias(const std::map<int32_t, float>& logit_bias) {
  FIRESTEEL_RETURN_IF_ERROR(CheckInt("number of logit_bias tokens",
                                     static_cast<int64_t>(logit_bias.size()), 0, kMaxLogitBias));
  for (const auto& [token, bias] : logit_bias) {
    FIRESTEEL_RETURN_IF_ERROR(CheckFloat("logit_bias of token " + std::to_string(token), bias,
                                         -100.0F, 100.0F, "-100..100"));
  }
  return Status::Ok();
}

static_assert(kMaxRequestBadWords == kMaxBadWords);

Status CheckBadWords(const std::vector<std::vector<int32_t>>& bad_words) {
  FIRESTEEL_RETURN_IF_ERROR(
      CheckInt("number of bad_words", static_cast<int64_t>(bad_words.size()), 0, kMaxBadWords));
  int64_t tokens = 0;
  for (size_t i = 0; i < bad_words.size(); ++i) {
    const auto length = static_cast<int64_t>(bad_words[i].size());
    FIRESTEEL_RETURN_IF_ERROR(CheckInt("number of tokens of bad_words[" + std::to_string(i) + "]",
                                       length, 1, kMaxBadWordLength));
    tokens += length;
  }
  return CheckInt("number of tokens of all bad_words", tokens, 0, kMaxBadWordTokens);
}

}  // namespace

Status SamplingParams::Validate() const {
  FIRESTEEL_RETURN_IF_ERROR(CheckFloat("temperature", temperature, 0.0F, 2.0F, "0..2"));
  if (!(top_p > 0.0F && top_p <= 1.0F)) {
    return InvalidArgument("top_p is " + std::to_string(top_p) + ", needs a value in (0, 1]");
  }
  FIRESTEEL_RETURN_IF_ERROR(CheckInt("top_k", top_k, 0, INT32_MAX));
  FIRESTEEL_RETURN_IF_ERROR(CheckFloat("min_p", min_p, 0.0F, 1.0F, "0..1"));
  if (max_tokens < 1) {
    return InvalidArgument("max_tokens is " + std::to_string(max_tokens) + ", needs at least 1");
  }
  FIRESTEEL_RETURN_IF_ERROR(CheckInt("min_tokens", min_tokens, 0, max_tokens));
  FIRESTEEL_RETURN_IF_ERROR(CheckFloat("presence_penalty", presence_penalty, -2.0F, 2.0F, "-2..2"));
  FIRESTEEL_RETURN_IF_ERROR(
      CheckFloat("frequency_penalty", frequency_penalty, -2.0F, 2.0F, "-2..2"));
  if (!(repetition_penalty > 0.0F) || !std::isfinite(repetition_penalty)) {
    return InvalidArgument("repetition_penalty is " + std::to_string(repetition_penalty) +
                           ", needs a finite value above 0");
  }
  FIRESTEEL_RETURN_IF_ERROR(CheckBias(logit_bias));
  FIRESTEEL_RETURN_IF_ERROR(CheckBadWords(bad_words));
  FIRESTEEL_RETURN_IF_ERROR(CheckInt("logprobs", logprobs, -1, kMaxLogprobs));
  return CheckInt("prompt_logprobs", prompt_logprobs, -1, kMaxLogprobs);
}

bool SamplingParams::NeedsEveryRow() const {
  const auto has_tail = [](const std::vector<int32_t>& word) { return word.size() > 1; };
  return HasPenalties() || prompt_logprobs >= 0 ||
         std::any_of(bad_words.begin(), bad_words.end(), has_tail);
}

}  // namespace firesteel
