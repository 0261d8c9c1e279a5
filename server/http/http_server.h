// The HTTP/1.1 server: sockets in, handlers called, answers out. Boost stays inside listener.cc and connection.cc.
//
// Threads: Start, Stop and the destructor belong to one thread. Requests without a body are handled on an io thread (so
// that probes are answered at once); requests with a body go to a small worker pool, where a handler may spend time on
// parsing and tokenising.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/core/status.h"
#include "server/http/router.h"

namespace firesteel {

// One answered (or given up) request, for the access log.
struct HttpAccess {
  std::string method;  // "-" when the bytes were no HTTP request
  std::string path;    // without the query
  int status = 0;      // 499: the client left before there was an answer
  double ms = 0;       // from the complete header to the last byte written
  std::string request_id;
  bool complete = false;  // false: the client left, or the server closed the connection
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address, or localhost
  uint16_t port = 0;               // 0: any free one
  int io_threads = 1;
  int worker_threads = 2;
  uint32_t header_limit_bytes = 64 << 10;
  uint64_t body_limit_bytes = 32 << 20;
  size_t stream_buffer_limit_bytes = 1 << 20;  // what may queue up for one slow client
  int64_t header_timeout_ms =
      30'000;  // first byte of a request to its last header; also an idle connection
  int64_t body_timeout_ms = 60'000;
  int64_t write_timeout_ms = 30'000;  // a write that takes longer ends the connection
  std::function<void(const HttpAccess&)> on_access;           // may be empty; any io thread
  std::function<void(const std::string&)> on_accept_failure;  // may be empty; seldom, any io thread
  int64_t keep_alive_ms = 10'000;  // silence of a stream after which its keep-alive text is sent
};

class HttpServer {
 public:
  // Binds and serves at once. `router` outlives the server; null: everything is answered 503 until SetRouter().
  // `error_format` words what the connection itself refuses.
  static Result<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                   const Router* router,
                                                   HttpErrorFormat error_format);
  ~HttpServer();  // as Stop()

  // Ends the 503 of a start without a router. `router` outlives the server or is used until Stop().
  void SetRouter(const Router* router);

  // Every answer to a request that comes from now on ends its connection, so that clients go elsewhere.
  void BeginDrain();

  uint16_t port() const;

  // Requests that were read and whose answer is not completely written.
  int64_t active_requests() const;

  // Closes the listening socket and every connection, and joins the threads. Idempotent.
  void Stop();

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace firesteel
