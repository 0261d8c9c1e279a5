#include "server/grpc/parse_request.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "server/grpc/parse_sampling.h"

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

Result<int32_t> ReadChoices(const v1::SamplingOptions& options, const ModelInfo& info) {
  const int32_t n = options.has_n() ? options.n() : 1;
  const int32_t most =
      info.max_live_requests > 0 ? std::min(kMaxChoices, info.max_live_requests) : kMaxChoices;
  if (n >= 1 && n <= most) return n;
  return InvalidArgument("sampling.n is " + std::to_string(n) + ", needs 1 to " +
                         std::to_string(most));
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

Result<GrpcGeneration> ParseGenerate(const v1::GenerateRequest& request, const GrpcModel& model) {
  if (!request.model().empty() && request.model() != model.name) {
    return NotFound("the model '" + request.model() + "' does not exist, this server has '" +
                    model.name + "'");
  }
  const v1::SamplingOptions& options = request.sampling();
  GenerationCall call;
  FIRESTEEL_RETURN_IF_ERROR(ReadSampling(options, *model.tokenizer, model.info->vocab_size, &call));
  FIRESTEEL_ASSIGN_OR_RETURN(const int32_t choices, ReadChoices(options, *model.info));
  FIRESTEEL_ASSIGN_OR_RETURN(call.prompt_ids, ReadPrompt(request, model));
  GrpcGeneration generation;
  generation.drop_output = options.has_max_tokens() && options.max_tokens() == 0;
  if (generation.drop_output) call.sampling.max_tokens = 1;
  FIRESTEEL_RETURN_IF_ERROR(LimitToModel(PromptName(request), model.info->max_model_len, &call));
  const Status room = CheckMinTokens(call.sampling);
  if (!room.ok()) return InvalidArgument("sampling." + room.message());
  FIRESTEEL_RETURN_IF_ERROR(call.sampling.Validate());
  if (options.echo()) generation.echo = model.tokenizer->Decode(call.prompt_ids, true);
  generation.calls = MakeChoices(std::move(call), choices);
  for (size_t i = 1; i < generation.calls.size(); ++i) {
    generation.calls[i].sampling.prompt_logprobs = -1;  // theirs would be those of choice 0
  }
  return generation;
}

}  // namespace firesteel
