#include "tests/support/raw_http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>

#include "kernels/core/check.h"

namespace firesteel {

RawHttpClient::RawHttpClient(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
  const timeval timeout{2, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  FIRESTEEL_CHECK(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0,
                  "cannot connect to the server under test");
}

RawHttpClient::~RawHttpClient() { Close(); }

void RawHttpClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void RawHttpClient::Send(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return;  // the server may refuse before it read everything
    sent += static_cast<size_t>(n);
  }
}

bool RawHttpClient::Fill() {
  char piece[4096];
  const ssize_t n = recv(fd_, piece, sizeof piece, 0);
  if (n == 0) closed_ = true;
  if (n <= 0) return false;
  buffer_.append(piece, static_cast<size_t>(n));
  return true;
}

std::string RawHttpClient::ReadUntil(const std::string& marker) {
  size_t at = buffer_.find(marker);
  while (at == std::string::npos && Fill()) at = buffer_.find(marker);
  const size_t end = at == std::string::npos ? buffer_.size() : at + marker.size();
  std::string result = buffer_.substr(0, end);
  buffer_.erase(0, end);
  return result;
}

std::string RawHttpClient::ReadToEnd() {
  while (Fill()) {
  }
  std::string result;
  result.swap(buffer_);
  return result;
}

std::string RawHttpClient::RoundTrip(const std::string& request) {
  Send(request);
  std::string answer = ReadUntil("\r\n\r\n");
  const std::string field = "Content-Length: ";
  const size_t at = answer.find(field);
  if (at == std::string::npos) return answer;
  const size_t length = std::strtoull(answer.c_str() + at + field.size(), nullptr, 10);
  while (buffer_.size() < length && Fill()) {
  }
  answer += buffer_.substr(0, length);
  buffer_.erase(0, length);
  return answer;
}

}  // namespace firesteel
