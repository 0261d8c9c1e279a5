#include "server/serve_command.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <time.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "server/app.h"
#include "server/cli/flags.h"
#include "server/grpc/grpc_server.h"
#include "server/http/http_server.h"
#include "server/metrics/server_metrics.h"
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

// The front ends of a running server. gRPC may be off: null.
struct FrontEnds {
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<GrpcServer> grpc;

  int64_t active() const {
    return http->active_requests() + (grpc == nullptr ? 0 : grpc->active_calls());
  }
};

void PrintStart(const CliOptions& options, const std::string& model_name, const ModelInfo& info,
                const FrontEnds& front_ends) {
  const bool v6 = options.serve.host.find(':') != std::string::npos;
  const std::string host = v6 ? "[" + options.serve.host + "]" : options.serve.host;
  const std::string grpc =
      front_ends.grpc == nullptr ? "off" : host + ":" + std::to_string(front_ends.grpc->port());
  std::printf(
      "firesteel %s\n"
      "  model         %s (%s, %d positions)\n"
      "  device        %s, tp %d, dep %d, %d threads\n"
      "  drafter       %s, draft length %d, %s verification\n"
      "  cache         %s, activations %s\n"
      "  sequences     %d running, %d waiting at most\n"
      "  gRPC          %s\n"
      "  listening on  http://%s:%u\n",
      FIRESTEEL_VERSION, model_name.c_str(), info.architecture.c_str(), info.max_model_len,
      info.device.c_str(), info.tp, info.dep, info.threads, info.drafter.c_str(), info.draft_length,
      info.verification.c_str(), info.cache_dtype.c_str(), info.activations.c_str(),
      options.engine.max_sequences, options.engine.max_queue, grpc.c_str(), host.c_str(),
      front_ends.http->port());
  std::fflush(stdout);
}

// Waits until nothing runs any more, the time is up, or a second signal came.
void Drain(App* app, const FrontEnds& front_ends, int32_t timeout_s) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(timeout_s);
  while (std::chrono::steady_clock::now() < deadline) {
    if (app->output_thread()->live() == 0 && front_ends.active() == 0) return;
    if (WaitForSignal(kPollMs) != 0) {
      spdlog::warn("second signal: giving up {} running requests", app->output_thread()->live());
      return;
    }
  }
  spdlog::warn("drain time is up: giving up {} running requests", app->output_thread()->live());
}

// Until every answer is written, for a short time: a client that does not read must not hold the process.
void WaitForAnswers(const FrontEnds& front_ends) {
  for (int i = 0; i < 10 && front_ends.active() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
  }
}

// For a log line: a client chooses the length and the bytes. The parser lets only visible ASCII and bytes above it pass.
std::string Printable(const std::string& text) {
  constexpr size_t kLongest = 200;
  std::string shown;
  for (const char c : text.substr(0, kLongest)) {
    const bool visible = c > ' ' && c < 0x7F;
    shown += visible ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return text.size() > kLongest ? shown + "..." : shown;
}

void LogAccess(const HttpAccess& access) {
  spdlog::info("{} {} {} {:.1f} ms {}{}", Printable(access.method), Printable(access.path),
               access.status, access.ms, access.request_id,
               access.complete ? "" : " (not completed)");
}

// Before the model is loaded: a port in use is told at once, and probes get a 503 instead of a refused connection.
Result<std::unique_ptr<HttpServer>> StartHttp(const CliOptions& options, ServerMetrics* metrics) {
  HttpServerOptions http;
  if (options.serve.access_log) http.on_access = LogAccess;
  http.on_accept_failure = [](const std::string& message) { spdlog::error("{}", message); };
  http.host = options.serve.host;
  http.port = static_cast<uint16_t>(options.serve.http_port);
  http.body_limit_bytes = static_cast<uint64_t>(options.serve.max_body_bytes);
  // What the connection refuses itself never reaches a route, so it is counted here.
  const HttpErrorFormat counted_error = [metrics](int status, const std::string& message) {
    metrics->OnHttpAnswer("unmatched", "other", status);
    return OpenAiService::FormatError(status, message);
  };
  return HttpServer::Start(http, nullptr, counted_error);
}

Status StartGrpc(const CliOptions& options, const std::string& model_name, App* app,
                 FrontEnds* front_ends) {
  if (options.serve.grpc_port == 0) return Status::Ok();
  GrpcServerOptions grpc;
  grpc.host = options.serve.host;
  grpc.receive_limit_bytes = options.serve.max_body_bytes;
  if (options.serve.grpc_port != kAnyGrpcPort) {
    grpc.port = static_cast<uint16_t>(options.serve.grpc_port);
  }
  GrpcModel model{model_name, FIRESTEEL_VERSION, &app->engine()->info(), app->tokenizer(),
                  app->chat_template()};
  FIRESTEEL_ASSIGN_OR_RETURN(front_ends->grpc,
                             GrpcServer::Start(grpc, std::move(model), app->output_thread()));
  return Status::Ok();
}

}  // namespace

int RunServe(const CliOptions& options) {
  const std::string model_name = ModelName(options);
  ServerMetrics metrics(model_name);
  Result<std::unique_ptr<HttpServer>> http = StartHttp(options, &metrics);
  if (!http.ok()) {
    spdlog::error("{}", http.status().message());
    return kExitFailure;
  }
  Result<std::unique_ptr<App>> loaded = App::Load(options.engine, &metrics);
  if (!loaded.ok()) {
    spdlog::error("{}", loaded.status().message());
    return kExitFailure;
  }
  App* app = loaded->get();
  OpenAiService service({model_name, FIRESTEEL_VERSION}, app->engine(), app->tokenizer(),
                        app->chat_template(), app->output_thread());
  Router router(OpenAiService::FormatError);
  router.SetObserver([&metrics](const std::string& handler, const std::string& method, int status) {
    metrics.OnHttpAnswer(handler, method, status);
  });
  service.AddRoutes(&router);
  metrics.AddRoute(app->engine(), &router);
  // Destroyed before what its handlers use.
  FrontEnds front_ends;
  front_ends.http = std::move(http).value();
  const Status started = StartGrpc(options, model_name, app, &front_ends);
  if (!started.ok()) {
    spdlog::error("{}", started.message());
    return kExitFailure;
  }
  front_ends.http->SetRouter(&router);
  PrintStart(options, model_name, app->engine()->info(), front_ends);

  int signal = 0;
  while (signal == 0 && app->engine()->stats().healthy) signal = WaitForSignal(kPollMs);
  const bool failed = signal == 0;
  if (failed) {
    spdlog::error("the engine has failed: ending");
  } else {
    spdlog::info("signal {}: draining", signal);
  }
  // New work is refused with 503 or UNAVAILABLE while the running answers are completed.
  // The connections first: a request that the service refuses must find that its answer is the last one.
  front_ends.http->BeginDrain();
  service.BeginDrain();
  if (front_ends.grpc != nullptr) {
    front_ends.grpc->SetReady(false);
    if (failed) front_ends.grpc->SetAlive(false);
  }
  app->engine()->BeginDrain();
  Drain(app, front_ends, failed ? 1 : options.serve.drain_timeout_s);
  // The output thread first: what it gives up gets an error event, and that needs the sockets for a moment.
  app->output_thread()->Stop();
  WaitForAnswers(front_ends);
  if (front_ends.grpc != nullptr) front_ends.grpc->Stop();
  front_ends.http->Stop();
  return failed ? kExitFailure : kExitOk;
}

}  // namespace firesteel
