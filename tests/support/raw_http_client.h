// A blocking TCP client for tests of the HTTP server: sends the bytes it is told to, returns the bytes it got.
#pragma once

#include <cstdint>
#include <string>

namespace firesteel {

class RawHttpClient {
 public:
  explicit RawHttpClient(uint16_t port);  // connects to 127.0.0.1
  ~RawHttpClient();
  RawHttpClient(const RawHttpClient&) = delete;
  RawHttpClient& operator=(const RawHttpClient&) = delete;

  void Send(const std::string& bytes);
  // Reads until `marker` was received (and returns all up to its end), the peer closed, or two seconds passed without
  // data. What came after the marker is kept for the next call.
  std::string ReadUntil(const std::string& marker);
  // Reads until the peer closes or two seconds pass; `closed()` tells which.
  std::string ReadToEnd();
  bool closed() const { return closed_; }
  void Close();

  // One request on this connection; the answer's head and, by its Content-Length, body.
  std::string RoundTrip(const std::string& request);

 private:
  bool Fill();

  int fd_ = -1;
  bool closed_ = false;
  std::string buffer_;
};

}  // namespace firesteel
