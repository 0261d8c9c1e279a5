#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "server/openai/generation_request.h"
#include "server/stream/bad_words.h"

namespace firesteel {

using Json = nlohmann::json;

namespace {

void ReadStop(FieldReader* reader, std::vector<std::string>* stop) {
  const Json* value = reader->Find("stop");
  if (value == nullptr || !reader->ok()) return;
  const Json list = value->is_array() ? *value : Json::array({*value});
  if (list.size() > kMaxStopStrings) {
    return reader->FailValue("stop", *value,
                             "at most " + std::to_string(kMaxStopStrings) + " strings");
  }
  for (const Json& item : list) {
    if (!item.is_string()) {
      return reader->FailValue("stop", item, "a string or a list of strings");
    }
    const std::string& text = item.get_ref<const std::string&>();
    if (text.empty() || text.size() > kMaxStopBytes) {
      return reader->Fail("stop", "a stop string has " + std::to_string(text.size()) +
                                      " bytes, needs 1.." + std::to_string(kMaxStopBytes));
    }
    stop->push_back(text);
  }
}

void ReadStopTokenIds(FieldReader* reader, int32_t vocab_size, std::vector<int32_t>* out) {
  const Json* value = reader->Find("stop_token_ids");
  if (value == nullptr || !reader->ok()) return;
  if (!value->is_array() || value->size() > kMaxStopTokenIds) {
    return reader->FailValue(
        "stop_token_ids", *value,
        "a list of at most " + std::to_string(kMaxStopTokenIds) + " token ids");
  }
  *out = ReadTokenIds(reader, "stop_token_ids", *value, vocab_size);
}

// The limits on counts and lengths are the engine's; `only` has nothing but the field in question.
void CheckEngineLimits(FieldReader* reader, const std::string& name, const SamplingParams& only) {
  const Status status = only.Validate();
  if (!status.ok()) reader->Fail(name, status.message());
}

void ReadFloatOption(FieldReader* reader, const char* name, double low, double high, float* out) {
  double value = *out;
  reader->ReadFloat(name, low, high, &value);
  *out = static_cast<float>(value);
}

// {"TOKEN ID": bias, ...}
void ReadLogitBias(FieldReader* reader, int32_t vocab_size, std::map<int32_t, float>* out) {
  const Json* value = reader->Find("logit_bias");
  if (value == nullptr || !reader->ok()) return;
  if (!value->is_object()) return reader->FailValue("logit_bias", *value, "an object");
  SamplingParams only;
  for (const auto& item : value->items()) {
    const std::string& key = item.key();
    int32_t token = -1;
    const std::from_chars_result parsed =
        std::from_chars(key.data(), key.data() + key.size(), token);
    const bool whole = parsed.ec == std::errc() && parsed.ptr == key.data() + key.size();
    if (!whole || token < 0 || token >= vocab_size) {
      return reader->Fail("logit_bias", "logit_bias has the key " + DescribeJson(Json(key)) +
                                            ", needs a token id in 0.." +
                                            std::to_string(vocab_size - 1));
    }
    const double bias = item.value().is_number() ? item.value().get<double>() : kLargestBias + 1.0;
    if (!(bias >= -kLargestBias && bias <= kLargestBias)) {
      return reader->Fail("logit_bias", "logit_bias of token " + key + " is " +
                                            DescribeJson(item.value()) +
                                            ", needs a number in -100..100");
    }
    if (!only.logit_bias.emplace(token, static_cast<float>(bias)).second) {
      return reader->Fail("logit_bias", "logit_bias has several keys for token " +
                                            std::to_string(token) + ", needs one");
    }
  }
  CheckEngineLimits(reader, "logit_bias", only);
  *out = std::move(only.logit_bias);
}

void ReadBadWords(FieldReader* reader, const Tokenizer& tokenizer,
                  std::vector<std::vector<int32_t>>* out) {
  const Json* value = reader->Find("bad_words");
  if (value == nullptr || !reader->ok()) return;
  if (!value->is_array()) return reader->FailValue("bad_words", *value, "a list of strings");
  SamplingParams only;
  for (const Json& item : *value) {
    if (!item.is_string()) return reader->FailValue("bad_words", item, "a list of strings");
    const Status added = AddBadWord(tokenizer, item.get_ref<const std::string&>(), &only.bad_words);
    if (!added.ok()) return reader->Fail("bad_words", "bad_words: " + added.message());
  }
  CheckEngineLimits(reader, "bad_words", only);
  *out = std::move(only.bad_words);
}

}  // namespace

void ReadTokenLimit(FieldReader* reader, int32_t least_max_tokens, int32_t fallback_max_tokens,
                    GenerationCall* call) {
  int64_t max_tokens = fallback_max_tokens;
  reader->ReadInt("max_tokens", least_max_tokens, INT32_MAX, &max_tokens);
  reader->ReadInt("max_completion_tokens", least_max_tokens, INT32_MAX, &max_tokens);
  call->sampling.max_tokens = static_cast<int32_t>(max_tokens);
}

void ReadSampling(FieldReader* reader, const ParseContext& context, GenerationCall* call) {
  SamplingParams& sampling = call->sampling;
  ReadFloatOption(reader, "temperature", 0.0, kLargestTemperature, &sampling.temperature);
  ReadFloatOption(reader, "top_p", kSmallestTopP, 1.0, &sampling.top_p);
  ReadFloatOption(reader, "min_p", 0.0, 1.0, &sampling.min_p);
  ReadFloatOption(reader, "presence_penalty", -kLargestPenalty, kLargestPenalty,
                  &sampling.presence_penalty);
  ReadFloatOption(reader, "frequency_penalty", -kLargestPenalty, kLargestPenalty,
                  &sampling.frequency_penalty);
  ReadFloatOption(reader, "repetition_penalty", kSmallestRepetitionPenalty,
                  kLargestRepetitionPenalty, &sampling.repetition_penalty);
  int64_t top_k = sampling.top_k;
  reader->ReadInt("top_k", -1, INT32_MAX, &top_k);
  sampling.top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));  // -1 is "all" too
  int64_t min_tokens = sampling.min_tokens;
  reader->ReadInt("min_tokens", 0, INT32_MAX, &min_tokens);
  sampling.min_tokens = static_cast<int32_t>(min_tokens);
  ReadLogitBias(reader, context.vocab_size, &sampling.logit_bias);
  ReadBadWords(reader, *context.tokenizer, &sampling.bad_words);
  std::optional<uint64_t> seed;
  reader->ReadSeed("seed", &seed);
  sampling.seed = seed.has_value() ? *seed : DrawSeed();
  reader->ReadBool("ignore_eos", &sampling.ignore_eos);
  ReadStop(reader, &call->stop);
  ReadStopTokenIds(reader, context.vocab_size, &call->stop_token_ids);
}

std::optional<ApiError> FitToModel(const std::string& param, int32_t max_model_len,
                                   GenerationCall* call) {
  const bool too_long = static_cast<int64_t>(call->prompt_ids.size()) >= max_model_len;
  const Status status = LimitToModel(param, max_model_len, call);
  if (status.ok()) {
    const Status room = CheckMinTokens(call->sampling);
    if (room.ok()) return std::nullopt;
    return FieldError("min_tokens", room.message());
  }
  ApiError error = FieldError(param, status.message());
  if (too_long) error.code = "context_length_exceeded";
  return error;
}

std::vector<int32_t> ReadTokenIds(FieldReader* reader, const std::string& name, const Json& list,
                                  int32_t vocab_size) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    const bool in_range = item.is_number_integer() && item >= 0 && item < vocab_size;
    if (!in_range) {
      reader->Fail(name, name + "[" + std::to_string(ids.size()) + "] is " + DescribeJson(item) +
                             ", needs a token id in 0.." + std::to_string(vocab_size - 1));
      return {};
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

}  // namespace firesteel
