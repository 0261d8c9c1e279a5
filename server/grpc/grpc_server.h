// The gRPC server: firesteel.v1.Engine, grpc.health.v1.Health and reflection on one port, without TLS.
//
// Threads: Start, SetReady, SetAlive, Stop and the destructor belong to one thread; active_calls() may be called
// from any. gRPC runs the methods on threads of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/core/status.h"
#include "server/grpc/parse_request.h"
#include "server/stream/output_thread.h"

namespace firesteel {

struct GrpcServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  int64_t receive_limit_bytes = 32 << 20;
  int64_t send_limit_bytes = 64 << 20;
};

class GrpcServer {
 public:
  // Binds and serves at once, ready and alive. What `model` points to and `output` outlive the server.
  static Result<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options,
                                                   GrpcModel model, OutputThread* output);
  ~GrpcServer();  // as Stop()

  uint16_t port() const;

  // Generate calls that have not ended yet.
  int64_t active_calls() const;

  // What health checks of "firesteel.v1.Engine" and of "" are told from now on.
  void SetReady(bool ready);
  void SetAlive(bool alive);

  // Ends what still runs after a second and closes the port. Idempotent.
  void Stop();

 private:
  class Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace firesteel
