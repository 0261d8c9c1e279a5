#include "server/stream/generation_call.h"

#include <algorithm>
#include <random>

namespace firesteel {

uint64_t DrawSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

Status LimitToModel(const std::string& name, int32_t max_model_len, GenerationCall* call) {
  const auto length = static_cast<int64_t>(call->prompt_ids.size());
  if (length == 0) return InvalidArgument(name + " has no tokens, needs at least 1");
  const int64_t left = max_model_len - length;
  if (left < 1) {
    return InvalidArgument(name + " has " + std::to_string(length) + " tokens, needs at most " +
                           std::to_string(max_model_len - 1) + " to leave room for output in " +
                           std::to_string(max_model_len) + " positions");
  }
  const int64_t wanted = call->sampling.max_tokens > 0 ? call->sampling.max_tokens : left;
  call->sampling.max_tokens = static_cast<int32_t>(std::min(wanted, left));
  return Status::Ok();
}

Status CheckMinTokens(const SamplingParams& sampling) {
  if (sampling.min_tokens <= sampling.max_tokens) return Status::Ok();
  return InvalidArgument("min_tokens is " + std::to_string(sampling.min_tokens) +
                         ", needs at most the " + std::to_string(sampling.max_tokens) +
                         " tokens that max_tokens and the model's length allow");
}

std::vector<GenerationCall> MakeChoices(GenerationCall call, int32_t count) {
  std::vector<GenerationCall> choices(static_cast<size_t>(count), call);
  for (GenerationCall& choice : choices) choice.sampling.seed = call.sampling.seed++;
  return choices;
}

}  // namespace firesteel
