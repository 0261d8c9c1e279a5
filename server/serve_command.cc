#include "server/serve_command.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <time.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include "server/app.h"
#include "server/cli/flags.h"
#include "server/http/http_server.h"
#include "server/openai/openai_service.h"

namespace firesteel {

namespace {

constexpr int64_t kPollMs = 100;  // how late a failed engine or a finished drain is noticed

// The signal that arrived within the time, or 0.
int WaitForSignal(int64_t timeout_ms) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  const timespec timeout{static_cast<time_t>(timeout_ms / 1000),
                         static_cast<long>(timeout_ms % 1000 * 1'000'000)};
  const int signal = sigtimedwait(&set, nullptr, &timeout);
  return signal > 0 ? signal : 0;
}

std::string ModelName(const CliOptions& options) {
  if (!options.serve.served_model_name.empty()) return options.serve.served_model_name;
  std::filesystem::path path =
      std::filesystem::absolute(options.engine.model_dir).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  return path.filename().string();
}

void PrintStart(const CliOptions& options, const std::string& model_name, const ModelInfo& info,
                uint16_t port) {
  const bool v6 = options.serve.host.find(':') != std::string::npos;
  const std::string host = v6 ? "[" + options.serve.host + "]" : options.serve.host;
  std::printf(
      "firesteel %s\n"
      "  model         %s (%s, %d positions)\n"
      "  device        %s, tp %d, dep %d, %d threads\n"
      "  drafter       %s, draft length %d, %s verification\n"
      "  cache         %s\n"
      "  sequences     %d running, %d waiting at most\n"
      "  listening on  http://%s:%u\n",
      FIRESTEEL_VERSION, model_name.c_str(), info.architecture.c_str(), info.max_model_len,
      info.device.c_str(), info.tp, info.dep, info.threads, info.drafter.c_str(), info.draft_length,
      info.verification.c_str(), info.cache_dtype.c_str(), options.engine.max_sequences,
      options.engine.max_queue, host.c_str(), port);
  std::fflush(stdout);
}

// Waits until nothing runs any more, the time is up, or a second signal came.
void Drain(App* app, const HttpServer& server, int32_t timeout_s) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(timeout_s);
  while (std::chrono::steady_clock::now() < deadline) {
    if (app->output_thread()->live() == 0 && server.active_requests() == 0) return;
    if (WaitForSignal(kPollMs) != 0) {
      spdlog::warn("second signal: giving up {} running requests", app->output_thread()->live());
      return;
    }
  }
  spdlog::warn("drain time is up: giving up {} running requests", app->output_thread()->live());
}

// Until every answer is written, for a short time: a client that does not read must not hold the process.
void WaitForAnswers(const HttpServer& server) {
  for (int i = 0; i < 10 && server.active_requests() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
  }
}

}  // namespace

int RunServe(const CliOptions& options) {
  Result<std::unique_ptr<App>> loaded = App::Load(options.engine);
  if (!loaded.ok()) {
    spdlog::error("{}", loaded.status().message());
    return kExitFailure;
  }
  App* app = loaded->get();
  const std::string model_name = ModelName(options);
  OpenAiService service({model_name, FIRESTEEL_VERSION}, app->engine(), app->tokenizer(),
                        app->chat_template(), app->output_thread());
  Router router(OpenAiService::FormatError);
  service.AddRoutes(&router);
  HttpServerOptions http;
  http.host = options.serve.host;
  http.port = static_cast<uint16_t>(options.serve.http_port);
  http.body_limit_bytes = static_cast<uint64_t>(options.serve.max_body_bytes);
  Result<std::unique_ptr<HttpServer>> server =
      HttpServer::Start(http, &router, OpenAiService::FormatError);
  if (!server.ok()) {
    spdlog::error("{}", server.status().message());
    return kExitFailure;
  }
  PrintStart(options, model_name, app->engine()->info(), (*server)->port());

  int signal = 0;
  while (signal == 0 && app->engine()->stats().healthy) signal = WaitForSignal(kPollMs);
  const bool failed = signal == 0;
  if (failed) {
    spdlog::error("the engine has failed: ending");
  } else {
    spdlog::info("signal {}: draining", signal);
  }
  // New work is refused with 503 while the running answers are completed.
  service.BeginDrain();
  app->engine()->BeginDrain();
  Drain(app, **server, failed ? 1 : options.serve.drain_timeout_s);
  // The output thread first: what it gives up gets an error event, and that needs the sockets for a moment.
  app->output_thread()->Stop();
  WaitForAnswers(**server);
  (*server)->Stop();
  return failed ? kExitFailure : kExitOk;
}

}  // namespace firesteel
