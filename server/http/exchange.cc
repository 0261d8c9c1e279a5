#include "server/http/exchange.h"

#include <utility>

namespace firesteel {

const char* HttpReason(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Payload Too Large";
    case 415: return "Unsupported Media Type";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 503: return "Service Unavailable";
    default: return "Unknown";
  }
}

namespace {

// Asked for when the answer starts: the server may have begun to drain since its request came.
bool StaysOpen(const ExchangeOptions& options) {
  return options.keep_alive && (options.draining == nullptr || !options.draining->load());
}

void AppendChunk(std::string_view piece, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string size;
  for (size_t left = piece.size(); left > 0; left >>= 4) size.insert(size.begin(), kHex[left & 15]);
  out->append(size).append("\r\n").append(piece).append("\r\n");
}

}  // namespace

Exchange::Exchange(ExchangeOptions options, std::function<void()> wake)
    : options_(std::move(options)), wake_(std::move(wake)) {}

std::string Exchange::Head(int status, const std::string& content_type,
                           const HttpHeaders& headers) const {
  std::string head = options_.http_1_1 ? "HTTP/1.1 " : "HTTP/1.0 ";
  head += std::to_string(status) + " " + HttpReason(status) + "\r\n";
  head += "Server: firesteel\r\nContent-Type: " + content_type + "\r\n";
  head += "X-Request-Id: " + options_.request_id + "\r\n";
  for (const auto& header : headers) head += header.first + ": " + header.second + "\r\n";
  return head;
}

void Exchange::Send(HttpResponse response) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (started_) return;
    started_ = true;
    ended_ = true;
    status_ = response.status;
    head_ = Head(response.status, response.content_type, response.headers);
    head_ += "Content-Length: " + std::to_string(response.body.size()) + "\r\n";
    stays_open_ = StaysOpen(options_);
    head_ += stays_open_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
    queued_ = options_.head_only ? std::string() : std::move(response.body);
  }
  wake_();
}

void Exchange::StartStream(StreamStart start) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (started_) return;
    started_ = true;
    streaming_ = true;
    status_ = 200;
    keep_alive_text_ = std::move(start.keep_alive);
    head_ = Head(200, start.content_type, start.headers);
    if (options_.http_1_1) head_ += "Transfer-Encoding: chunked\r\n";
    // Without chunks the end of a stream is the end of its connection.
    stays_open_ = StaysOpen(options_) && options_.http_1_1;
    head_ += stays_open_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  }
  wake_();
}

bool Exchange::Write(std::string_view piece) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (gone_ || ended_ || overflowed_) return false;
    if (queued_.size() + piece.size() > options_.buffer_limit_bytes) {
      overflowed_ = true;
      return false;
    }
    queued_.append(piece);
    if (!started_) return true;
  }
  wake_();
  return true;
}

void Exchange::End() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    ended_ = true;
    if (!started_) return;
  }
  wake_();
}

bool Exchange::gone() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return gone_;
}

void Exchange::OnDisconnect(std::function<void()> callback) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!gone_) {
      if (!taken_last_) on_disconnect_ = std::move(callback);
      return;
    }
  }
  callback();
}

Exchange::Output Exchange::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Output output;
  if (!started_ || taken_last_) return output;
  output.bytes = std::exchange(head_, std::string());
  if (!queued_.empty()) {
    if (streaming_ && options_.http_1_1) {
      AppendChunk(queued_, &output.bytes);
    } else {
      output.bytes += queued_;
    }
    queued_.clear();
  }
  if (ended_) {
    taken_last_ = true;
    output.last = true;
    output.broken = overflowed_;
    if (streaming_ && options_.http_1_1 && !overflowed_) output.bytes += "0\r\n\r\n";
  }
  return output;
}

void Exchange::QueueKeepAlive() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (streaming_ && !ended_ && queued_.empty()) queued_ = keep_alive_text_;
}

bool Exchange::streaming() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return streaming_;
}

int Exchange::status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

bool Exchange::stays_open() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stays_open_;
}

void Exchange::Complete() {
  // Destroyed after the lock is released: what the callback holds may hold this exchange.
  std::function<void()> dropped;
  const std::lock_guard<std::mutex> lock(mutex_);
  dropped.swap(on_disconnect_);
}

void Exchange::Gone() {
  std::function<void()> callback;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    gone_ = true;
    callback.swap(on_disconnect_);
  }
  if (callback) callback();
}

}  // namespace firesteel
