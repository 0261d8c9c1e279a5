// One accepted socket. Included by listener.cc and connection.cc only: it needs Boost.
//
// Threads: everything runs on the connection's strand, except Exchange (see connection.cc), which queues under a mutex
// and posts to the strand.
// Invariants:
//  1. One request at a time: the next one is parsed after the answer is completely written.
//  2. While an answer is pending one read watches the socket, so that a client that leaves is noticed at once. Bytes of
//     a pipelined request stay in the buffer; only a client that sends more than kReadAheadBytes of them is not watched.
//  3. A client that closes its sending side counts as gone: TCP does not tell that from a client that closed altogether.
#pragma once

#include <utility>  // before Asio: its headers use std::exchange without it

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/thread_pool.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>

#include "server/http/http_server.h"

namespace firesteel {

class Connection;

// What all connections of a server share. Outlives them.
struct ConnectionContext {
  const HttpServerOptions* options = nullptr;
  std::atomic<const Router*> router{nullptr};  // null: nothing is served yet
  std::atomic<bool> draining{false};           // every answer ends its connection
  HttpErrorFormat error_format;
  boost::asio::thread_pool* workers = nullptr;
  std::atomic<int64_t> active_requests{0};
  std::atomic<uint64_t> next_request{0};
  uint64_t id_salt = 0;  // makes request ids of two runs differ

  std::mutex mutex;  // guards open
  std::set<Connection*> open;
};

// Starts serving `socket`. The connection keeps itself alive through its pending operations.
void ServeConnection(boost::asio::ip::tcp::socket socket, ConnectionContext* context);

// Closes every open connection, from any thread.
void CloseAllConnections(ConnectionContext* context);

}  // namespace firesteel
