#include "server/http/connection.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "server/http/exchange.h"

namespace firesteel {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

namespace {

constexpr size_t kWatchBytes = 4 << 10;
constexpr size_t kReadAheadBytes = 64 << 10;  // of pipelined requests, while one is answered
constexpr auto kLinger =
    std::chrono::seconds(2);  // for a client to read our last bytes before the socket is closed

bool UsableRequestId(const std::string& id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.' || c == ':';
  });
}

bool IsFramingError(const ErrorCode& error) {
  return error && error.category() == http::make_error_code(http::error::bad_method).category();
}

std::string DrawRequestId(ConnectionContext* context) {
  // An odd multiplier permutes 64-bit values: distinct counters give distinct ids.
  uint64_t value = context->next_request.fetch_add(1) * 0x9E3779B97F4A7C15U + context->id_salt;
  std::string id = "req-";
  for (int i = 0; i < 16; ++i, value >>= 4) id += "0123456789abcdef"[value & 15];
  return id;
}

}  // namespace

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, ConnectionContext* context)
      : context_(context), stream_(std::move(socket)), timer_(stream_.get_executor()) {
    const std::lock_guard<std::mutex> lock(context_->mutex);
    context_->open.insert(this);
  }

  ~Connection() {
    const std::lock_guard<std::mutex> lock(context_->mutex);
    context_->open.erase(this);
  }

  void Start() {
    asio::post(stream_.get_executor(), [self = shared_from_this()] {
      ErrorCode ignored;
      // Small frames of one stream must not wait for each other's acknowledgement.
      self->stream_.socket().set_option(tcp::no_delay(true), ignored);
      self->ReadHeader();
    });
  }

  void PostClose() {
    asio::post(stream_.get_executor(), [self = shared_from_this()] { self->Close(); });
  }

 private:
  void ReadHeader();
  void ReadRequestLine();
  bool RefuseHeader();
  void OnHeader(ErrorCode error);
  void ReadBody();
  void OnRequest(ErrorCode error);
  void Open(bool keep_alive, bool http_1_1, bool head_only, const std::string& request_id);
  void Refuse(int status, const std::string& message);
  void RefuseTooLargeBody();
  void NoteRequest();
  void ReportAccess(bool complete);
  void Watch();
  void OnWatch(ErrorCode error, size_t bytes);
  void Flush();
  void OnWritten(ErrorCode error);
  void FinishAnswer();
  void ArmKeepAlive();
  void CloseGracefully();
  void Close();
  void DropExchange();
  template <typename Action>
  void Arm(std::chrono::steady_clock::duration delay, Action action);

  ConnectionContext* const context_;
  beast::tcp_stream stream_;
  asio::steady_timer timer_;  // idle wait, stream silence or linger: one at a time
  uint64_t timer_generation_ = 0;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::shared_ptr<Exchange> exchange_;  // second owner: the handler's side of the pending answer
  std::string out_;                     // bytes of the write in flight
  bool out_last_ = false;
  bool out_broken_ = false;
  bool keep_alive_ = false;
  bool watching_ = false;
  bool writing_ = false;
  bool idle_ = false;       // the watch waits for the next request's first bytes
  bool resuming_ = false;   // the watch is cancelled, for the next request is in the buffer
  bool lingering_ = false;  // our side is shut down; what still comes is dropped
  bool closed_ = false;
  HttpAccess access_;  // of the request that is read or answered
  std::chrono::steady_clock::time_point request_start_{};
  // Itself, while an answer is pending: without a watch no operation may hold it. Released by DropExchange.
  std::shared_ptr<Connection> self_;
};

template <typename Action>
void Connection::Arm(std::chrono::steady_clock::duration delay, Action action) {
  timer_.expires_after(delay);
  timer_.async_wait(
      [self = shared_from_this(), action, generation = ++timer_generation_](ErrorCode) {
        if (generation == self->timer_generation_ && !self->closed_) action();
      });
}

void Connection::ReadHeader() {
  if (closed_) return;
  parser_.emplace();
  parser_->header_limit(context_->options->header_limit_bytes);
  parser_->body_limit(context_->options->body_limit_bytes);
  access_ = HttpAccess();
  request_start_ = std::chrono::steady_clock::now();
  stream_.expires_after(std::chrono::milliseconds(context_->options->header_timeout_ms));
  ReadRequestLine();
}

// Empty lines before a request line are dropped, as some clients end a body with one.
void Connection::ReadRequestLine() {
  const auto* bytes = static_cast<const char*>(buffer_.data().data());
  size_t blank = 0;
  while (blank < buffer_.size() && (bytes[blank] == '\r' || bytes[blank] == '\n')) ++blank;
  buffer_.consume(blank);
  if (buffer_.size() == 0) {
    stream_.async_read_some(buffer_.prepare(kWatchBytes),
                            [self = shared_from_this()](ErrorCode error, size_t bytes_read) {
                              if (error) return self->Close();
                              self->buffer_.commit(bytes_read);
                              self->ReadRequestLine();
                            });
    return;
  }
  http::async_read_header(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](ErrorCode error, size_t) { self->OnHeader(error); });
}

// What the parser lets pass and this server does not take. True when it answered.
bool Connection::RefuseHeader() {
  const auto& message = parser_->get();
  if (message.count(http::field::transfer_encoding) > 0) {
    // Any other coding leaves the body's end unknown, and what follows must not be taken for a request.
    const bool only_chunked = message.count(http::field::transfer_encoding) == 1 &&
                              beast::iequals(message[http::field::transfer_encoding], "chunked") &&
                              message.count(http::field::content_length) == 0 &&
                              message.version() >= 11;
    if (!only_chunked) {
      Refuse(400,
             "Transfer-Encoding needs to be 'chunked', in HTTP/1.1 and without Content-Length");
      return true;
    }
  }
  const auto encoding = message[http::field::content_encoding];
  if (!encoding.empty() && !beast::iequals(encoding, "identity")) {
    Refuse(415, "Content-Encoding of a request needs to be absent or 'identity'");
    return true;
  }
  return false;
}

void Connection::NoteRequest() {
  access_.method = std::string(parser_->get().method_string());
  const std::string target(parser_->get().target());
  access_.path = target.substr(0, target.find('?'));
}

void Connection::RefuseTooLargeBody() {
  Refuse(413, "the request body is too large, the limit is " +
                  std::to_string(context_->options->body_limit_bytes) + " bytes");
}

void Connection::OnHeader(ErrorCode error) {
  request_start_ = std::chrono::steady_clock::now();
  if (error == http::error::header_limit) {
    return Refuse(431, "the request header is too large, the limit is " +
                           std::to_string(context_->options->header_limit_bytes) + " bytes");
  }
  if (!error || error == http::error::body_limit) NoteRequest();
  if (error == http::error::body_limit) return RefuseTooLargeBody();
  if (error == http::error::end_of_stream || error == http::error::partial_message) return Close();
  if (IsFramingError(error)) return Refuse(400, "malformed HTTP request: " + error.message());
  if (error) return Close();
  if (RefuseHeader()) return;
  if (beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    out_ = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(stream_, asio::buffer(out_),
                      [self = shared_from_this()](ErrorCode write_error, size_t) {
                        if (write_error) return self->Close();
                        self->ReadBody();
                      });
    return;
  }
  ReadBody();
}

void Connection::ReadBody() {
  stream_.expires_after(std::chrono::milliseconds(context_->options->body_timeout_ms));
  http::async_read(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](ErrorCode error, size_t) { self->OnRequest(error); });
}

void Connection::OnRequest(ErrorCode error) {
  if (error == http::error::body_limit) return RefuseTooLargeBody();
  if (error == beast::error::timeout) return Refuse(408, "the request body did not arrive in time");
  if (error == http::error::end_of_stream || error == http::error::partial_message) return Close();
  if (IsFramingError(error)) return Refuse(400, "malformed request body: " + error.message());
  if (error) return Close();
  const bool keep_alive = parser_->keep_alive();
  http::request<http::string_body> message = parser_->release();
  HttpRequest request;
  request.method = access_.method;
  request.path = access_.path;
  const std::string target(message.target());
  const size_t query = target.find('?');
  if (query != std::string::npos) request.query = target.substr(query + 1);
  request.request_id = std::string(message["X-Request-Id"]);
  if (!UsableRequestId(request.request_id)) request.request_id = DrawRequestId(context_);
  request.body = std::move(message.body());
  Open(keep_alive, message.version() >= 11, request.method == "HEAD", request.request_id);
  Watch();
  const Router* const router = context_->router.load();
  if (router == nullptr) {
    exchange_->Send(context_->error_format(503, "the model is being loaded"));
    return;
  }
  if (request.body.empty()) {
    router->Dispatch(std::move(request), exchange_);
    return;
  }
  asio::post(*context_->workers,
             [router, request = std::move(request), exchange = exchange_]() mutable {
               router->Dispatch(std::move(request), std::move(exchange));
             });
}

void Connection::Open(bool keep_alive, bool http_1_1, bool head_only,
                      const std::string& request_id) {
  keep_alive_ = keep_alive && !context_->draining.load();
  access_.request_id = request_id;
  self_ = shared_from_this();
  ExchangeOptions options;
  options.http_1_1 = http_1_1;
  options.keep_alive = keep_alive_;
  options.draining = &context_->draining;
  options.head_only = head_only;
  options.request_id = request_id;
  options.buffer_limit_bytes = context_->options->stream_buffer_limit_bytes;
  context_->active_requests.fetch_add(1);
  exchange_ = std::make_shared<Exchange>(options, [weak = weak_from_this()] {
    if (const std::shared_ptr<Connection> self = weak.lock()) {
      asio::post(self->stream_.get_executor(), [self] { self->Flush(); });
    }
  });
}

void Connection::Refuse(int status, const std::string& message) {
  // What follows in the socket cannot be understood, so the connection ends with this answer.
  Open(false, true, false, DrawRequestId(context_));
  exchange_->Send(context_->error_format(status, message));
}

void Connection::Watch() {
  if (watching_ || closed_) return;
  if (lingering_) buffer_.clear();
  if (buffer_.size() > kReadAheadBytes) return;
  watching_ = true;
  // The deadline of the request's own read must not end the wait for the answer.
  if (!writing_) stream_.expires_never();
  stream_.async_read_some(
      buffer_.prepare(kWatchBytes),
      [self = shared_from_this()](ErrorCode error, size_t bytes) { self->OnWatch(error, bytes); });
}

void Connection::OnWatch(ErrorCode error, size_t bytes) {
  watching_ = false;
  if (resuming_) {
    resuming_ = false;
    if (error && error != asio::error::operation_aborted) return Close();
    buffer_.commit(bytes);
    return ReadHeader();
  }
  if (error == asio::error::eof) {
    // An answer that is ready or on its way is not torn off.
    keep_alive_ = false;
    Flush();
    if (writing_ && out_last_) return;
  }
  if (error) return Close();
  buffer_.commit(bytes);
  if (idle_) {
    idle_ = false;
    ++timer_generation_;
    timer_.cancel();
    return ReadHeader();
  }
  Watch();
}

void Connection::Flush() {
  if (closed_ || writing_ || exchange_ == nullptr) return;
  Exchange::Output output = exchange_->Take();
  if (output.bytes.empty() && !output.last) return;
  out_ = std::move(output.bytes);
  out_last_ = output.last;
  out_broken_ = output.broken;
  writing_ = true;
  stream_.expires_after(std::chrono::milliseconds(context_->options->write_timeout_ms));
  asio::async_write(
      stream_, asio::buffer(out_),
      [self = shared_from_this()](ErrorCode error, size_t) { self->OnWritten(error); });
}

void Connection::OnWritten(ErrorCode error) {
  writing_ = false;
  if (error || out_broken_) return Close();
  if (closed_) return;
  if (out_last_) return FinishAnswer();
  if (exchange_->streaming()) ArmKeepAlive();
  Flush();
}

void Connection::ArmKeepAlive() {
  Arm(std::chrono::milliseconds(context_->options->keep_alive_ms), [this] {
    if (exchange_ == nullptr) return;
    exchange_->QueueKeepAlive();
    Flush();
  });
}

void Connection::FinishAnswer() {
  // As the answer's head promised, though the server may have begun to drain since: the client may have sent its next
  // request already, and that one's answer will say `close`.
  const bool stays_open = keep_alive_ && exchange_->stays_open();
  exchange_->Complete();
  ReportAccess(true);
  DropExchange();
  ++timer_generation_;
  timer_.cancel();
  if (!stays_open) return CloseGracefully();
  if (!watching_) return ReadHeader();
  if (buffer_.size() > 0) {
    // The next request, or its first bytes, came while this one was answered. OnWatch goes on.
    resuming_ = true;
    stream_.cancel();
    return;
  }
  idle_ = true;
  Arm(std::chrono::milliseconds(context_->options->header_timeout_ms), [this] { Close(); });
}

void Connection::CloseGracefully() {
  ErrorCode ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  lingering_ = true;
  Arm(kLinger, [this] { Close(); });
  Watch();
}

void Connection::Close() {
  if (closed_) return;
  closed_ = true;
  timer_.cancel();
  stream_.close();
  if (exchange_ != nullptr) {
    ReportAccess(false);
    exchange_->Gone();
  }
  DropExchange();
}

void Connection::ReportAccess(bool complete) {
  if (!context_->options->on_access) return;
  const std::chrono::duration<double, std::milli> taken =
      std::chrono::steady_clock::now() - request_start_;
  const int status = exchange_->status();
  access_.status = status == 0 ? kClientGone : status;
  access_.ms = taken.count();
  access_.complete = complete;
  if (access_.method.empty()) access_.method = access_.path = "-";
  context_->options->on_access(access_);
}

void Connection::DropExchange() {
  if (exchange_ == nullptr) return;
  exchange_.reset();
  self_.reset();  // callers hold another reference
  context_->active_requests.fetch_sub(1);
}

void ServeConnection(tcp::socket socket, ConnectionContext* context) {
  std::make_shared<Connection>(std::move(socket), context)->Start();
}

void CloseAllConnections(ConnectionContext* context) {
  // Collected first: a connection destroyed here deregisters itself under the same mutex.
  std::vector<std::shared_ptr<Connection>> open;
  {
    const std::lock_guard<std::mutex> lock(context->mutex);
    for (Connection* connection : context->open) {
      if (std::shared_ptr<Connection> alive = connection->weak_from_this().lock()) {
        open.push_back(std::move(alive));
      }
    }
  }
  for (const std::shared_ptr<Connection>& connection : open) connection->PostClose();
}

}  // namespace firesteel
