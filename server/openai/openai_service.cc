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
  router->Add("GET", "/v1/models/*", [this](HttpRequest request, Writer writer) {
    writer->Send(Model(request.path.substr(std::string("/v1/models/").size())));
  });
  router->Add("GET", "/health", [this](HttpRequest, Writer writer) { writer->Send(Health()); });
  // The same answer under the name that readiness probes ask for.
  router->Add("GET", "/ready", [this](HttpRequest, Writer writer) { writer->Send(Health()); });
  router->Add("GET", "/version", [this](HttpRequest, Writer writer) {
    writer->Send(JsonResponse(200, {{"version", options_.version}}));
  });
}

Json OpenAiService::Card() const {
  return {{"id", options_.model_name},
          {"object", "model"},
          {"created", started_},
          {"owned_by", "firesteel"},
          {"root", options_.model_name},
          {"parent", nullptr},
          {"max_model_len", context_.max_model_len}};
}

HttpResponse OpenAiService::Models() const {
  return JsonResponse(200, {{"object", "list"}, {"data", Json::array({Card()})}});
}

HttpResponse OpenAiService::Model(const std::string& name) const {
  if (name == options_.model_name) return JsonResponse(200, Card());
  constexpr size_t kShownBytes = 100;
  ApiError error = FieldError("model", "the model is '" + name.substr(0, kShownBytes) +
                                           "', this server has '" + options_.model_name + "'");
  error.status = 404;
  error.code = "model_not_found";
  return ErrorResponse(error);
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
  const auto most = static_cast<size_t>(engine_->info().max_live_requests);
  if (most > 0 && request.calls.size() > most) {
    return writer->Send(ErrorResponse(
        FieldError("prompt", "prompts times n make " + std::to_string(request.calls.size()) +
                                 " sequences, needs at most " + std::to_string(most) +
                                 ": the server's slots and queue together")));
  }
  ReplyOptions options;
  options.route = request.route;
  options.stream = request.stream;
  options.include_usage = request.include_usage;
  options.continuous_usage = request.continuous_usage;
  options.id = (request.route == Route::kChat ? "chatcmpl-" : "cmpl-") + request_id;
  options.model = options_.model_name;
  options.created = NowSeconds();
  options.logprobs = request.logprobs;
  options.prompt_logprobs = request.prompt_logprobs;
  options.drop_output = request.drop_output;
  const auto per_prompt = static_cast<size_t>(request.choices_per_prompt);
  for (size_t i = 0; i < request.calls.size(); ++i) {
    const std::vector<int32_t>& prompt = request.calls[i].prompt_ids;
    if (i % per_prompt == 0) options.prompt_tokens += static_cast<int64_t>(prompt.size());
    if (request.echo) options.echoed_prompts.push_back(prompt);
  }
  // Shared with the stream of each choice, on the output thread.
  const auto reply =
      std::make_shared<Reply>(std::move(options), context_.tokenizer, request.calls.size(), writer);
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
