#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/openai/generation_request.h"

namespace firesteel {

using Json = nlohmann::json;

namespace {

constexpr int32_t kDefaultCompletionTokens = 16;
constexpr size_t kMaxPrompts = 1024;

void ReadModel(FieldReader* reader, const ParseContext& context, std::optional<ApiError>* error) {
  std::string model = context.model_name;
  reader->ReadString("model", &model);
  if (!reader->ok() || model == context.model_name) return;
  *error = FieldError("model", "the model '" + model + "' does not exist, this server has '" +
                                   context.model_name + "'");
  (*error)->status = 404;
  (*error)->code = "model_not_found";
}

void ReadStreaming(FieldReader* reader, GenerationRequest* request) {
  reader->ReadBool("stream", &request->stream);
  const Json* options = reader->Find("stream_options");
  if (options == nullptr || !reader->ok()) return;
  if (!options->is_object()) return reader->FailValue("stream_options", *options, "an object");
  if (!request->stream) {
    return reader->Fail("stream_options", "stream_options is only allowed when stream is true");
  }
  FieldReader inner(*options);
  inner.ReadBool("include_usage", &request->include_usage);
  inner.ReadBool("continuous_usage_stats", &request->continuous_usage);
  if (!inner.ok()) reader->Fail("stream_options." + inner.error().param, inner.error().message);
}

void ReadChoices(FieldReader* reader, GenerationRequest* request) {
  int64_t choices = 1;
  reader->ReadInt("n", 1, kMaxChoices, &choices);
  int64_t best_of = choices;
  reader->ReadInt("best_of", 1, kMaxChoices, &best_of);
  if (best_of != choices) {
    reader->Fail("best_of", "best_of is " + std::to_string(best_of) +
                                ", needs null or n, which is " + std::to_string(choices));
  }
  request->choices_per_prompt = static_cast<int32_t>(choices);
}

// vLLM's extension: log-probabilities of the prompt, in bodies only.
void ReadPromptLogprobs(FieldReader* reader, GenerationRequest* request, GenerationCall* options) {
  int64_t count = -1;
  reader->ReadInt("prompt_logprobs", 0, kMostLogprobs, &count);
  if (count < 0) return;
  if (request->stream) {
    return reader->Fail("prompt_logprobs", "prompt_logprobs needs stream to be false");
  }
  request->prompt_logprobs = true;
  options->sampling.prompt_logprobs =
      std::max(options->sampling.prompt_logprobs, static_cast<int32_t>(count));
}

// logprobs, echo and the token limit of a completion, which decide together what of the prompt is reported.
void ReadCompletionReports(FieldReader* reader, GenerationRequest* request,
                           GenerationCall* options) {
  SamplingParams& sampling = options->sampling;
  const Json* logprobs = reader->Find("logprobs");
  int64_t count = -1;
  if (logprobs != nullptr && *logprobs != false) {
    reader->ReadInt("logprobs", 0, kMostLogprobs, &count);
  }
  reader->ReadBool("echo", &request->echo);
  request->logprobs = count >= 0;
  sampling.logprobs = static_cast<int32_t>(count);
  if (request->echo) sampling.prompt_logprobs = sampling.logprobs;
  ReadPromptLogprobs(reader, request, options);
  const bool may_drop_output = request->echo && request->logprobs;
  ReadTokenLimit(reader, may_drop_output ? 0 : 1, kDefaultCompletionTokens, options);
  if (sampling.max_tokens == 0) {
    request->drop_output = true;
    sampling.max_tokens = 1;
  }
}

// logprobs of a chat is a switch, top_logprobs the count.
void ReadChatReports(FieldReader* reader, GenerationRequest* request, GenerationCall* options) {
  reader->ReadBool("logprobs", &request->logprobs);
  int64_t count = 0;
  reader->ReadInt("top_logprobs", 0, kMostLogprobs, &count);
  if (count > 0 && !request->logprobs) {
    reader->Fail("top_logprobs", "top_logprobs is " + std::to_string(count) +
                                     ", which is only allowed when logprobs is true");
  }
  if (request->logprobs) options->sampling.logprobs = static_cast<int32_t>(count);
  ReadPromptLogprobs(reader, request, options);
}

std::vector<int32_t> EncodePrompt(FieldReader* reader, const std::string& name, const Json& text,
                                  const Tokenizer& tokenizer) {
  Result<std::vector<int32_t>> ids = tokenizer.EncodePlain(text.get_ref<const std::string&>());
  if (ids.ok()) return std::move(ids).value();
  reader->Fail(name, ids.status().message());
  return {};
}

// A string, a list of strings, a list of ids or a list of lists of ids.
std::vector<std::vector<int32_t>> ReadPrompts(FieldReader* reader, const ParseContext& context) {
  const Json* prompt = reader->Find("prompt");
  if (!reader->ok()) return {};
  if (prompt == nullptr) {
    reader->Fail("prompt", "prompt is missing");
    return {};
  }
  if (prompt->is_string()) return {EncodePrompt(reader, "prompt", *prompt, *context.tokenizer)};
  const char* needs = "a string, a list of strings, a list of token ids or a list of lists of them";
  if (!prompt->is_array() || prompt->empty()) {
    reader->FailValue("prompt", *prompt, needs);
    return {};
  }
  if (prompt->front().is_number()) {
    return {ReadTokenIds(reader, "prompt", *prompt, context.vocab_size)};
  }
  if (prompt->size() > kMaxPrompts) {
    reader->FailValue("prompt", *prompt, "at most " + std::to_string(kMaxPrompts) + " prompts");
    return {};
  }
  std::vector<std::vector<int32_t>> prompts;
  for (const Json& item : *prompt) {
    const std::string name = "prompt[" + std::to_string(prompts.size()) + "]";
    if (item.type() != prompt->front().type() || !(item.is_string() || item.is_array())) {
      reader->Fail("prompt", name + " is " + DescribeJson(item) + ", needs " + needs);
      return {};
    }
    prompts.push_back(item.is_string() ? EncodePrompt(reader, name, item, *context.tokenizer)
                                       : ReadTokenIds(reader, name, item, context.vocab_size));
    if (!reader->ok()) return {};
  }
  return prompts;
}

// The text of a message: a string, or a list of {"type":"text","text":...} parts.
std::string ReadContent(FieldReader* reader, const std::string& name, const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  if (!content.is_array()) {
    reader->FailValue(name, content, "a string or a list of text parts");
    return text;
  }
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string part_name = name + "[" + std::to_string(i) + "]";
    if (!part.is_object() || part.value("type", Json()) != "text") {
      const Json type = part.is_object() ? part.value("type", Json()) : part;
      reader->FailValue(part_name + ".type", type, "\"text\", the only part this server takes");
      return text;
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      reader->FailValue(part_name + ".text", part.value("text", Json()), "a string");
      return text;
    }
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

ChatMessage ReadMessage(FieldReader* reader, const std::string& name, const Json& item) {
  ChatMessage message;
  if (!item.is_object()) {
    reader->FailValue(name, item, "an object");
    return message;
  }
  FieldReader inner(item);
  inner.ReadString("role", &message.role);
  inner.ReadString("reasoning_content", &message.reasoning);
  if (inner.ok() && message.role.empty()) inner.Fail("role", "role is missing");
  for (const char* refused : {"tool_calls", "function_call"}) {
    const Json* value = inner.Find(refused);
    if (value != nullptr && !value->empty()) {
      inner.Fail(refused, std::string(refused) + " is not supported by this server");
    }
  }
  if (!inner.ok()) {
    reader->Fail(name + "." + inner.error().param, name + ": " + inner.error().message);
    return message;
  }
  const Json* content = inner.Find("content");
  if (content != nullptr) {
    message.content = ReadContent(reader, name + ".content", *content);
  } else if (message.role != "assistant") {
    reader->Fail(name + ".content", name + ".content is missing");
  }
  return message;
}

Result<std::unique_ptr<Json>> ParseObject(const std::string& body) {
  FIRESTEEL_ASSIGN_OR_RETURN(std::unique_ptr<Json> json, ParseJson(body));
  if (!json->is_object()) {
    return InvalidArgument("the body is " + DescribeJson(*json) + ", needs a JSON object");
  }
  return json;
}

// What both routes share, once the prompts are known.
ParsedRequest Complete(FieldReader* reader, const ParseContext& context, const std::string& param,
                       GenerationRequest request, const GenerationCall& options,
                       std::vector<std::vector<int32_t>> prompts) {
  if (!reader->ok()) return reader->error();
  const bool seeded = reader->Find("seed") != nullptr;
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerationCall call = options;
    call.prompt_ids = std::move(prompts[i]);
    if (!seeded && i > 0) call.sampling.seed = DrawSeed();
    const std::string name = prompts.size() > 1 ? param + "[" + std::to_string(i) + "]" : param;
    if (std::optional<ApiError> error = FitToModel(name, context.max_model_len, &call))
      return *error;
    const Status valid = call.sampling.Validate();
    if (!valid.ok()) return EngineError(valid);
    for (GenerationCall& choice : MakeChoices(std::move(call), request.choices_per_prompt)) {
      request.calls.push_back(std::move(choice));
    }
  }
  return request;
}

}  // namespace

std::vector<int32_t> ReadMessages(FieldReader* reader, const ParseContext& context) {
  const Json* messages = reader->Find("messages");
  if (!reader->ok()) return {};
  if (context.chat_template == nullptr) {
    reader->Fail("messages", "this model has no chat template, use prompt");
    return {};
  }
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    reader->FailValue("messages", messages == nullptr ? Json() : *messages, "a non-empty list");
    return {};
  }
  std::vector<ChatMessage> parsed;
  for (size_t i = 0; i < messages->size() && reader->ok(); ++i) {
    parsed.push_back(ReadMessage(reader, "messages[" + std::to_string(i) + "]", (*messages)[i]));
  }
  if (!reader->ok()) return {};
  Result<std::vector<int32_t>> ids = context.chat_template->Render(parsed, ChatOptions{});
  if (ids.ok()) return std::move(ids).value();
  reader->Fail("messages", ids.status().message());
  return {};
}

ParsedRequest ParseCompletions(const std::string& body, const ParseContext& context) {
  Result<std::unique_ptr<Json>> json = ParseObject(body);
  if (!json.ok()) return EngineError(json.status());
  FieldReader reader(**json);
  std::optional<ApiError> wrong_model;
  ReadModel(&reader, context, &wrong_model);
  if (wrong_model.has_value()) return *wrong_model;
  GenerationRequest request;
  request.route = Route::kCompletions;
  GenerationCall options;
  CheckRefusedFields(request.route, &reader);
  ReadStreaming(&reader, &request);
  ReadChoices(&reader, &request);
  ReadCompletionReports(&reader, &request, &options);
  ReadSampling(&reader, context, &options);
  std::vector<std::vector<int32_t>> prompts = ReadPrompts(&reader, context);
  return Complete(&reader, context, "prompt", std::move(request), options, std::move(prompts));
}

ParsedRequest ParseChat(const std::string& body, const ParseContext& context) {
  Result<std::unique_ptr<Json>> json = ParseObject(body);
  if (!json.ok()) return EngineError(json.status());
  FieldReader reader(**json);
  std::optional<ApiError> wrong_model;
  ReadModel(&reader, context, &wrong_model);
  if (wrong_model.has_value()) return *wrong_model;
  GenerationRequest request;
  request.route = Route::kChat;
  GenerationCall options;
  CheckRefusedFields(request.route, &reader);
  ReadStreaming(&reader, &request);
  ReadChoices(&reader, &request);
  ReadChatReports(&reader, &request, &options);
  ReadTokenLimit(&reader, 1, 0, &options);
  ReadSampling(&reader, context, &options);
  std::vector<std::vector<int32_t>> prompts;
  prompts.push_back(ReadMessages(&reader, context));
  return Complete(&reader, context, "messages", std::move(request), options, std::move(prompts));
}

}  // namespace firesteel
