#include "server/openai/openai_service.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/openai/reply.h"

namespace firesteel {

using Json = nlohmann::json;

namespace {

int64_t NowSeconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

HttpResponse JsonResponse(int status, const Json& body) {
  HttpResponse response;
  response.status = status;
  response.body = body.dump();
  return response;
}

}  // namespace

OpenAiService::OpenAiService(OpenAiOptions options, const Engine* engine,
                             const Tokenizer* tokenizer, const ChatTemplate* chat_template,
                             OutputThread* output)
    : options_(std::move(options)), engine_(engine), output_(output), started_(NowSeconds()) {
  context_.tokenizer = tokenizer;
  context_.chat_template = chat_template;
  context_.model_name = options_.model_name;
  context_.vocab_size = engine->info().vocab_size;
  context_.max_model_len = engine->info().max_model_len;
}

HttpResponse OpenAiService::FormatError(int status, const std::string& message) {
  return ErrorResponse(TransportError(status, message));
}

void OpenAiService::AddRoutes(Router* router) {
  using Writer = std::shared_ptr<ResponseWriter>;
  router->Add("POST", "/v1/completions", [this](HttpRequest request, Writer writer) {
    Generate(ParseCompletions(request.body, context_), request.request_id, std::move(writer));
  });
  router->Add("POST", "/v1/chat/completions", [this](HttpRequest request, Writer writer) {
    Generate(ParseChat(request.body, context_), request.request_id, std::move(writer));
  });
  router->Add("GET", "/v1/models", [this](HttpRequest, Writer writer) { writer->Send(Models()); });
  router->Add("GET", "/health", [this](HttpRequest, Writer writer) { writer->Send(Health()); });
  router->Add("GET", "/version", [this](HttpRequest, Writer writer) {
    writer->Send(JsonResponse(200, {{"version", options_.version}}));
  });
}

HttpResponse OpenAiService::Models() const {
  const Json card = {{"id", options_.model_name},
                     {"object", "model"},
                     {"created", started_},
                     {"owned_by", "firesteel"},
                     {"root", options_.model_name},
                     {"parent", nullptr},
                     {"max_model_len", context_.max_model_len}};
  return JsonResponse(200, {{"object", "list"}, {"data", Json::array({card})}});
}

HttpResponse OpenAiService::Health() const {
  if (!engine_->stats().healthy)
    return ErrorResponse(EngineError(Unavailable("the engine has failed")));
  if (draining_.load()) return ErrorResponse(EngineError(Unavailable("the server is draining")));
  return JsonResponse(200, {{"status", "ok"}});
}

void OpenAiService::Generate(ParsedRequest parsed, const std::string& request_id,
                             std::shared_ptr<ResponseWriter> writer) {
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    return writer->Send(ErrorResponse(*error));
  }
  GenerationRequest& request = std::get<GenerationRequest>(parsed);
  ReplyOptions options;
  options.route = request.route;
  options.stream = request.stream;
  options.include_usage = request.include_usage;
  options.continuous_usage = request.continuous_usage;
  options.id = (request.route == Route::kChat ? "chatcmpl-" : "cmpl-") + request_id;
  options.model = options_.model_name;
  options.created = NowSeconds();
  std::vector<int32_t> prompt_tokens;
  for (const GenerationCall& call : request.calls) {
    prompt_tokens.push_back(static_cast<int32_t>(call.prompt_ids.size()));
  }
  // Shared with the stream of each choice, on the output thread.
  const auto reply = std::make_shared<Reply>(std::move(options), std::move(prompt_tokens), writer);
  std::vector<RequestId> ids;
  for (size_t i = 0; i < request.calls.size(); ++i) {
    const Result<RequestId> id = output_->Submit(std::move(request.calls[i]), reply->StreamFor(i));
    if (id.ok()) {
      ids.push_back(*id);
      continue;
    }
    reply->Refuse(EngineError(id.status()));
    for (const RequestId admitted : ids) output_->Cancel(admitted);
    return;
  }
  writer->OnDisconnect([output = output_, ids] {
    for (const RequestId id : ids) output->Cancel(id);
  });
  reply->Begin();
}

}  // namespace firesteel
