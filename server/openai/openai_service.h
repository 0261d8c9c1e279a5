// The OpenAI-style routes over one engine: completions, chat completions, models, health, readiness and version.
//
// Threads: handlers run on any thread of the HTTP server. Invariant: a generation is admitted by the engine before the
// first header byte is sent, so a refusal is a real status code, also for a stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/api/engine.h"
#include "server/http/router.h"
#include "server/openai/generation_request.h"
#include "server/stream/output_thread.h"

namespace firesteel {

struct OpenAiOptions {
  std::string model_name;
  std::string version;
};

class OpenAiService {
 public:
  // The pointers outlive the service; `chat_template` may be null.
  OpenAiService(OpenAiOptions options, const Engine* engine, const Tokenizer* tokenizer,
                const ChatTemplate* chat_template, OutputThread* output);

  void AddRoutes(Router* router);

  // /health and /ready answer 503 from now on.
  void BeginDrain() { draining_.store(true); }

  static HttpResponse FormatError(int status, const std::string& message);

 private:
  void Generate(ParsedRequest parsed, const std::string& request_id,
                std::shared_ptr<ResponseWriter> writer);
  HttpResponse Models() const;
  HttpResponse Model(const std::string& name) const;
  nlohmann::json Card() const;
  HttpResponse Health() const;

  const OpenAiOptions options_;
  const Engine* const engine_;
  OutputThread* const output_;
  ParseContext context_;
  const int64_t started_;  // seconds since the epoch
  std::atomic<bool> draining_{false};
};

}  // namespace firesteel
