// The writer of one request, and the bytes it has for its connection. Thread-safe; see response_writer.h.
//
// Owners: the connection until the answer is written or the client is gone, and whatever the handler gave it to. It knows
// the connection only through `wake`, so it may outlive it.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "server/http/response_writer.h"

namespace firesteel {

struct ExchangeOptions {
  bool http_1_1 = true;    // false: no chunks, the end of a stream is the end of the connection
  bool keep_alive = true;  // what the Connection header says, unless `draining`
  const std::atomic<bool>* draining =
      nullptr;             // true: an answer that starts now ends its connection
  bool head_only = false;  // answer to HEAD
  std::string request_id;
  size_t buffer_limit_bytes = 0;
};

class Exchange : public ResponseWriter {
 public:
  // `wake` is called, from any thread and without a lock, when there is something to Take().
  Exchange(ExchangeOptions options, std::function<void()> wake);

  void Send(HttpResponse response) override;
  void StartStream(StreamStart start) override;
  bool Write(std::string_view piece) override;
  void End() override;
  bool gone() const override;
  void OnDisconnect(std::function<void()> callback) override;

  // For the connection ------------------------------------------------------------------------------------------------

  struct Output {
    std::string bytes;    // ready for the socket
    bool last = false;    // nothing follows
    bool broken = false;  // the stream lost data (buffer overflow): close without a proper end
  };
  Output Take();
  void QueueKeepAlive();  // no effect unless a stream is open and silent
  bool streaming() const;
  int status() const;       // of the status line; 0 before there is one
  bool stays_open() const;  // what the Connection header promised; false before there is one
  void Complete();          // everything is written; the disconnect callback is dropped
  void Gone();              // the client left; runs the disconnect callback

 private:
  std::string Head(int status, const std::string& content_type, const HttpHeaders& headers) const;

  const ExchangeOptions options_;
  const std::function<void()> wake_;
  mutable std::mutex mutex_;  // guards all below
  std::string head_;
  std::string queued_;
  std::string keep_alive_text_;
  std::function<void()> on_disconnect_;
  int status_ = 0;
  bool started_ = false;
  bool streaming_ = false;
  bool stays_open_ = false;
  bool ended_ = false;
  bool taken_last_ = false;
  bool overflowed_ = false;
  bool gone_ = false;
};

// "404" -> "Not Found"; "Unknown" for codes we do not send.
const char* HttpReason(int status);

}  // namespace firesteel
