#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "server/openai/generation_request.h"

namespace firesteel {

using Json = nlohmann::json;

namespace {

constexpr size_t kMaxStopBytes = 1024;
constexpr double kSmallestTopP = 1e-6;  // 0 would keep no token

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

}  // namespace

uint64_t DrawSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

void ReadSampling(FieldReader* reader, int32_t fallback_max_tokens, GenerationCall* call) {
  int64_t max_tokens = fallback_max_tokens;
  reader->ReadInt("max_tokens", 1, INT32_MAX, &max_tokens);
  reader->ReadInt("max_completion_tokens", 1, INT32_MAX, &max_tokens);
  double temperature = call->sampling.temperature;
  double top_p = call->sampling.top_p;
  reader->ReadFloat("temperature", 0.0, 2.0, &temperature);
  reader->ReadFloat("top_p", kSmallestTopP, 1.0, &top_p);
  std::optional<uint64_t> seed;
  reader->ReadSeed("seed", &seed);
  reader->ReadBool("ignore_eos", &call->sampling.ignore_eos);
  ReadStop(reader, &call->stop);
  call->sampling.max_tokens = static_cast<int32_t>(max_tokens);
  call->sampling.temperature = static_cast<float>(temperature);
  call->sampling.top_p = static_cast<float>(top_p);
  call->sampling.seed = seed.has_value() ? *seed : DrawSeed();
}

std::optional<ApiError> FitToModel(const std::string& param, int32_t max_model_len,
                                   GenerationCall* call) {
  const auto length = static_cast<int64_t>(call->prompt_ids.size());
  if (length == 0) return FieldError(param, param + " has no tokens, needs at least 1");
  const int64_t left = max_model_len - length;
  if (left < 1) {
    ApiError error =
        FieldError(param, param + " has " + std::to_string(length) + " tokens, needs at most " +
                              std::to_string(max_model_len - 1) + " to leave room for output in " +
                              std::to_string(max_model_len) + " positions");
    error.code = "context_length_exceeded";
    return error;
  }
  const int64_t wanted = call->sampling.max_tokens > 0 ? call->sampling.max_tokens : left;
  call->sampling.max_tokens = static_cast<int32_t>(std::min(wanted, left));
  return std::nullopt;
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
