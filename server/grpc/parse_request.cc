#include "server/grpc/parse_request.h"

#include <cmath>
#include <utility>
#include <vector>

namespace firesteel {

namespace {

using Ids = std::vector<int32_t>;

Result<Ids> ReadPrompt(const v1::GenerateRequest& request, const GrpcModel& model) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText: return model.tokenizer->EncodePlain(request.text());
    case v1::GenerateRequest::kTokens: {
      const auto& ids = request.tokens().ids();
      FIRESTEEL_RETURN_IF_ERROR(CheckTokenIds("tokens.ids", ids, model.info->vocab_size));
      return Ids(ids.begin(), ids.end());
    }
    case v1::GenerateRequest::kChat: break;
    default: return InvalidArgument("prompt is missing, needs text, tokens or chat");
  }
  if (model.chat_template == nullptr) {
    return InvalidArgument("chat is not available: this model has no chat template, use text");
  }
  if (request.chat().messages().empty()) {
    return InvalidArgument("chat.messages is empty, needs at least 1 message");
  }
  std::vector<ChatMessage> messages;
  for (const v1::ChatMessage& message : request.chat().messages()) {
    messages.push_back({message.role(), message.content(), message.reasoning()});
  }
  return model.chat_template->Render(messages, ChatOptions{});
}

Status CheckRange(const char* name, double value, double low, double high) {
  if (std::isfinite(value) && value >= low && value <= high) return Status::Ok();
  return InvalidArgument(std::string(name) + " is " + std::to_string(value) + ", needs " +
                         std::to_string(low) + " to " + std::to_string(high));
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

Status ReadSampling(const v1::SamplingOptions& options, GenerationCall* call) {
  SamplingParams& sampling = call->sampling;
  if (options.has_temperature()) sampling.temperature = options.temperature();
  if (options.has_top_p()) sampling.top_p = options.top_p();
  FIRESTEEL_RETURN_IF_ERROR(
      CheckRange("sampling.temperature", sampling.temperature, 0.0, kLargestTemperature));
  // As float, like the value: 1e-6 itself is allowed.
  FIRESTEEL_RETURN_IF_ERROR(
      CheckRange("sampling.top_p", sampling.top_p, static_cast<float>(kSmallestTopP), 1.0));
  if (options.has_max_tokens() && options.max_tokens() < 1) {
    return InvalidArgument("sampling.max_tokens is " + std::to_string(options.max_tokens()) +
                           ", needs at least 1");
  }
  sampling.max_tokens = options.has_max_tokens() ? options.max_tokens() : 0;
  sampling.seed = options.has_seed() ? options.seed() : DrawSeed();
  sampling.ignore_eos = options.ignore_eos();
  return ReadStop(options, &call->stop);
}

const char* PromptName(const v1::GenerateRequest& request) {
  if (request.has_tokens()) return "tokens.ids";
  return request.has_chat() ? "chat" : "text";
}

}  // namespace

Status CheckTokenIds(const std::string& name, const google::protobuf::RepeatedField<int32_t>& ids,
                     int32_t vocab_size) {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return InvalidArgument(name + "[" + std::to_string(i) + "] is " + std::to_string(ids[i]) +
                           ", needs a token id in 0.." + std::to_string(vocab_size - 1));
  }
  return Status::Ok();
}

Result<GenerationCall> ParseGenerate(const v1::GenerateRequest& request, const GrpcModel& model) {
  if (!request.model().empty() && request.model() != model.name) {
    return NotFound("the model '" + request.model() + "' does not exist, this server has '" +
                    model.name + "'");
  }
  GenerationCall call;
  FIRESTEEL_RETURN_IF_ERROR(ReadSampling(request.sampling(), &call));
  FIRESTEEL_ASSIGN_OR_RETURN(call.prompt_ids, ReadPrompt(request, model));
  FIRESTEEL_RETURN_IF_ERROR(LimitToModel(PromptName(request), model.info->max_model_len, &call));
  FIRESTEEL_RETURN_IF_ERROR(call.sampling.Validate());
  return call;
}

}  // namespace firesteel
