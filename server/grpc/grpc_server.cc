#include "server/grpc/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <utility>

#include "server/grpc/engine_service.h"

namespace firesteel {

namespace {

constexpr char kEngineService[] = "firesteel.v1.Engine";
// Clients may ping every 10 seconds, with or without calls; the rest is for timers that run early.
constexpr int kShortestPingIntervalMs = 9'000;
// Our own pings find clients that vanished without closing their connection.
constexpr int kPingAfterMs = 30'000;
constexpr int kPingTimeoutMs = 20'000;
constexpr auto kStopGrace = std::chrono::seconds(1);

int Clamped(int64_t bytes) { return static_cast<int>(std::min<int64_t>(bytes, INT_MAX)); }

}  // namespace

class GrpcServer::Impl {
 public:
  Impl(GrpcModel model, OutputThread* output) : service_(std::move(model), output) {}
  ~Impl() { Stop(); }

  Status Listen(const GrpcServerOptions& options) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    const bool v6 = options.host.find(':') != std::string::npos;
    const std::string address =
        (v6 ? "[" + options.host + "]" : options.host) + ":" + std::to_string(options.port);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    builder.SetMaxReceiveMessageSize(Clamped(options.receive_limit_bytes));
    builder.SetMaxSendMessageSize(Clamped(options.send_limit_bytes));
    // Else a second server on the same port would take half of the connections instead of failing.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kShortestPingIntervalMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kPingAfterMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      return Unavailable("cannot listen for gRPC on " + address);
    }
    port_ = static_cast<uint16_t>(port);
    SetServing("", true);
    SetServing(kEngineService, true);
    return Status::Ok();
  }

  void SetServing(const char* service, bool serving) {
    server_->GetHealthCheckService()->SetServingStatus(service, serving);
  }

  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() + kStopGrace);
    server_->Wait();
    server_.reset();
  }

  uint16_t port() const { return port_; }
  int64_t active_calls() const { return service_.active_calls(); }

 private:
  EngineService service_;  // outlives server_
  std::unique_ptr<grpc::Server> server_;
  uint16_t port_ = 0;
};

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcServer::~GrpcServer() = default;

Result<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options,
                                                      GrpcModel model, OutputThread* output) {
  auto impl = std::make_unique<Impl>(std::move(model), output);
  FIRESTEEL_RETURN_IF_ERROR(impl->Listen(options));
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

uint16_t GrpcServer::port() const { return impl_->port(); }
int64_t GrpcServer::active_calls() const { return impl_->active_calls(); }
void GrpcServer::SetReady(bool ready) { impl_->SetServing(kEngineService, ready); }
void GrpcServer::SetAlive(bool alive) { impl_->SetServing("", alive); }
void GrpcServer::Stop() { impl_->Stop(); }

}  // namespace firesteel
