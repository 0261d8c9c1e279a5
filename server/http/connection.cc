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
constexpr auto kLinger =
    std::chrono::seconds(2);  // for a client to read our last bytes before the socket is closed

bool UsableRequestId(const std::string& id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.' || c == ':';
  });
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
  void OnHeader(ErrorCode error);
  void ReadBody();
  void OnRequest(ErrorCode error);
  void Open(bool keep_alive, bool http_1_1, bool head_only, const std::string& request_id);
  void Refuse(int status, const std::string& message);
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
  bool lingering_ = false;  // our side is shut down; what still comes is dropped
  bool closed_ = false;
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
  stream_.expires_after(std::chrono::milliseconds(context_->options->header_timeout_ms));
  http::async_read_header(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](ErrorCode error, size_t) { self->OnHeader(error); });
}

void Connection::OnHeader(ErrorCode error) {
  if (error == http::error::header_limit) return Refuse(431, "the request header is too large");
  if (error == http::error::body_limit) {
    return Refuse(413, "the request body is too large, the limit is " +
                           std::to_string(context_->options->body_limit_bytes) + " bytes");
  }
  if (error == http::error::end_of_stream || error == http::error::partial_message) return Close();
  if (error && error.category() == http::make_error_code(http::error::bad_method).category()) {
    return Refuse(400, "malformed HTTP request: " + error.message());
  }
  if (error) return Close();
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
  if (error == http::error::body_limit) {
    return Refuse(413, "the request body is too large, the limit is " +
                           std::to_string(context_->options->body_limit_bytes) + " bytes");
  }
  if (error == beast::error::timeout) return Refuse(408, "the request body did not arrive in time");
  if (error) return Close();
  const bool keep_alive = parser_->keep_alive();
  http::request<http::string_body> message = parser_->release();
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  const size_t query = target.find('?');
  request.path = target.substr(0, query);
  if (query != std::string::npos) request.query = target.substr(query + 1);
  request.request_id = std::string(message["X-Request-Id"]);
  if (!UsableRequestId(request.request_id)) request.request_id = DrawRequestId(context_);
  request.body = std::move(message.body());
  Open(keep_alive, message.version() >= 11, request.method == "HEAD", request.request_id);
  Watch();
  if (request.body.empty()) {
    context_->router->Dispatch(std::move(request), exchange_);
    return;
  }
  asio::post(*context_->workers, [router = context_->router, request = std::move(request),
                                  exchange = exchange_]() mutable {
    router->Dispatch(std::move(request), std::move(exchange));
  });
}

void Connection::Open(bool keep_alive, bool http_1_1, bool head_only,
                      const std::string& request_id) {
  keep_alive_ = keep_alive;
  self_ = shared_from_this();
  ExchangeOptions options;
  options.http_1_1 = http_1_1;
  options.keep_alive = keep_alive;
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
  if (buffer_.size() > 0) return;  // a pipelined request: see OnWatch
  watching_ = true;
  // The deadline of the request's own read must not end the wait for the answer.
  if (!writing_) stream_.expires_never();
  stream_.async_read_some(
      buffer_.prepare(kWatchBytes),
      [self = shared_from_this()](ErrorCode error, size_t bytes) { self->OnWatch(error, bytes); });
}

void Connection::OnWatch(ErrorCode error, size_t bytes) {
  watching_ = false;
  if (error) return Close();
  buffer_.commit(bytes);
  if (idle_) {
    idle_ = false;
    ++timer_generation_;
    timer_.cancel();
    return ReadHeader();
  }
  // A client that sends its next request early is not watched any more: its bytes stay where they are.
  if (lingering_) Watch();
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
  const bool stream_end_is_close = exchange_->streaming() && !exchange_->http_1_1();
  exchange_->Complete();
  DropExchange();
  ++timer_generation_;
  timer_.cancel();
  if (!keep_alive_ || stream_end_is_close) return CloseGracefully();
  if (!watching_)
    return ReadHeader();  // the next request, or its first bytes, came while this one was answered
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
  if (exchange_ != nullptr) exchange_->Gone();
  DropExchange();
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
