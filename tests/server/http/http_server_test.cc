// The server on a real loopback socket: framing, limits, timeouts and clients that leave or stall.
#include "server/http/http_server.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/raw_http_client.h"

namespace firesteel {
namespace {

HttpResponse PlainError(int status, const std::string& message) {
  HttpResponse response;
  response.status = status;
  response.body = "error:" + message;
  return response;
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <typename Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 200; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// A server with an echo route and a stream whose writer the test holds.
struct Fixture {
  explicit Fixture(HttpServerOptions options = {}) : router(PlainError) {
    router.Add("POST", "/echo", [](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
      HttpResponse response;
      response.body = request.body;
      writer->Send(std::move(response));
    });
    router.Add("GET", "/query", [](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
      HttpResponse response;
      response.body = request.query + "|" + request.request_id;
      writer->Send(std::move(response));
    });
    router.Add("GET", "/hold", [this](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
      writer->OnDisconnect([this] { ++disconnects; });
      const std::lock_guard<std::mutex> lock(mutex);
      held = std::move(writer);
    });
    Result<std::unique_ptr<HttpServer>> started = HttpServer::Start(options, &router, PlainError);
    REQUIRE(started.ok());
    server = std::move(started).value();
  }
  ~Fixture() { server->Stop(); }

  std::shared_ptr<ResponseWriter> Held() {
    REQUIRE(Eventually([this] {
      const std::lock_guard<std::mutex> lock(mutex);
      return held != nullptr;
    }));
    const std::lock_guard<std::mutex> lock(mutex);
    return std::move(held);
  }

  Router router;
  std::mutex mutex;
  std::shared_ptr<ResponseWriter> held;
  std::atomic<int> disconnects{0};
  std::unique_ptr<HttpServer> server;
};

const char kEcho[] = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello";
const char kHold[] = "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n";

TEST_CASE("two requests are answered on one kept connection") {
  Fixture fixture;
  RawHttpClient client(fixture.server->port());
  for (int i = 0; i < 2; ++i) {
    const std::string answer = client.RoundTrip(kEcho);
    CHECK(Has(answer, "HTTP/1.1 200 OK\r\n"));
    CHECK(Has(answer, "\r\n\r\nhello"));
  }
}

TEST_CASE("pipelined requests are answered in order") {
  Fixture fixture;
  RawHttpClient client(fixture.server->port());
  const std::string second = "GET /query?n=2 HTTP/1.1\r\nX-Request-Id: two\r\nHost: x\r\n\r\n";
  const std::string first = client.RoundTrip(kEcho + second);
  INFO(first);
  CHECK(Has(first, "hello"));
  CHECK(Has(client.RoundTrip(""), "n=2|two"));
}

TEST_CASE("the client's request id comes back and an unusable one is replaced") {
  Fixture fixture;
  RawHttpClient client(fixture.server->port());
  CHECK(Has(client.RoundTrip("GET /query HTTP/1.1\r\nHost: x\r\nX-Request-Id: a-1\r\n\r\n"),
            "X-Request-Id: a-1\r\n"));
  const std::string bad =
      client.RoundTrip("GET /query HTTP/1.1\r\nHost: x\r\nX-Request-Id: a b\r\n\r\n");
  CHECK(Has(bad, "X-Request-Id: req-"));
}

TEST_CASE("an unknown path is 404 and a wrong method is 405 with the allowed ones") {
  Fixture fixture;
  RawHttpClient client(fixture.server->port());
  CHECK(Has(client.RoundTrip("GET /none HTTP/1.1\r\nHost: x\r\n\r\n"), "HTTP/1.1 404 "));
  const std::string wrong = client.RoundTrip("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(Has(wrong, "HTTP/1.1 405 "));
  CHECK(Has(wrong, "Allow: POST\r\n"));
}

TEST_CASE("a body over the limit is 413, whether announced or chunked") {
  HttpServerOptions options;
  options.body_limit_bytes = 1000;
  Fixture fixture(options);
  const std::string body(2000, 'x');
  const std::string request = GENERATE_COPY(
      values<std::string>({"Content-Length: 2000\r\n\r\n" + body,
                           "Transfer-Encoding: chunked\r\n\r\n7d0\r\n" + body + "\r\n0\r\n\r\n"}));
  RawHttpClient client(fixture.server->port());
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\n" + request);
  CHECK(Has(client.ReadToEnd(), "HTTP/1.1 413 "));
  CHECK(client.closed());
}

TEST_CASE("a header over the limit is 431") {
  HttpServerOptions options;
  options.header_limit_bytes = 1024;
  Fixture fixture(options);
  RawHttpClient client(fixture.server->port());
  client.Send("GET /query HTTP/1.1\r\nHost: x\r\nX-Long: " + std::string(4000, 'y') + "\r\n\r\n");
  const std::string answer = client.ReadToEnd();
  CHECK(Has(answer, "HTTP/1.1 431 "));
  CHECK(Has(answer, "the limit is 1024 bytes"));
}

TEST_CASE("bytes that are not HTTP are 400") {
  Fixture fixture;
  RawHttpClient client(fixture.server->port());
  client.Send("\x16\x03\x01 not http\r\n\r\n");
  CHECK(Has(client.ReadToEnd(), "HTTP/1.1 400 "));
}

TEST_CASE("a header that does not arrive in time closes the connection") {
  HttpServerOptions options;
  options.header_timeout_ms = 100;
  Fixture fixture(options);
  RawHttpClient client(fixture.server->port());
  client.Send("GET /query HT");
  client.ReadToEnd();
  CHECK(client.closed());
}

TEST_CASE("Expect: 100-continue is answered before the body is read") {
  Fixture fixture;
  RawHttpClient client(fixture.server->port());
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  CHECK(Has(client.ReadUntil("\r\n\r\n"), "100 Continue"));
  CHECK(Has(client.RoundTrip("ok"), "\r\n\r\nok"));
}

TEST_CASE("a stream is chunked, ends with the last chunk and leaves the connection usable") {
  Fixture fixture;
  RawHttpClient client(fixture.server->port());
  client.Send(kHold);
  const std::shared_ptr<ResponseWriter> writer = fixture.Held();
  writer->StartStream({"text/event-stream", {{"Cache-Control", "no-cache"}}, ""});
  CHECK(writer->Write("data: one\n\n"));
  const std::string first = client.ReadUntil("one\n\n\r\n");
  CHECK(Has(first, "Transfer-Encoding: chunked\r\n"));
  CHECK(Has(first, "Cache-Control: no-cache\r\n"));
  CHECK(Has(first, "\r\n\r\nb\r\ndata: one\n\n\r\n"));
  CHECK(writer->Write("x"));
  writer->End();
  CHECK(client.ReadUntil("0\r\n\r\n") == "1\r\nx\r\n0\r\n\r\n");
  CHECK(Has(client.RoundTrip(kEcho), "hello"));
  CHECK(fixture.disconnects == 0);
}

TEST_CASE("a refusal after queued pieces is a plain answer without them") {
  Fixture fixture;
  RawHttpClient client(fixture.server->port());
  client.Send(kHold);
  const std::shared_ptr<ResponseWriter> writer = fixture.Held();
  CHECK(writer->Write("data: early\n\n"));
  writer->Send(PlainError(429, "full"));
  const std::string answer = client.RoundTrip("");
  CHECK(Has(answer, "HTTP/1.1 429 Too Many Requests\r\n"));
  CHECK_FALSE(Has(answer, "early"));
}

TEST_CASE("a silent stream carries its keep-alive text") {
  HttpServerOptions options;
  options.keep_alive_ms = 30;
  Fixture fixture(options);
  RawHttpClient client(fixture.server->port());
  client.Send(kHold);
  const std::shared_ptr<ResponseWriter> writer = fixture.Held();
  writer->StartStream({"text/event-stream", {}, ": keep-alive\n\n"});
  CHECK(Has(client.ReadUntil(": keep-alive\n\n"), ": keep-alive\n\n"));
  CHECK(Has(client.ReadUntil(": keep-alive\n\n"), ": keep-alive\n\n"));
  writer->End();
}

TEST_CASE("a client that leaves while it waits is noticed without a write") {
  Fixture fixture;
  RawHttpClient client(fixture.server->port());
  client.Send(kHold);
  const std::shared_ptr<ResponseWriter> writer = fixture.Held();
  client.Close();
  CHECK(Eventually([&] { return fixture.disconnects == 1; }));
  CHECK_FALSE(writer->Write("late"));
  CHECK(Eventually([&] { return fixture.server->active_requests() == 0; }));
}

TEST_CASE("a client that leaves after sending bytes behind its request is noticed") {
  Fixture fixture;
  RawHttpClient client(fixture.server->port());
  client.Send(std::string(kHold) + "\r\n");
  const std::shared_ptr<ResponseWriter> writer = fixture.Held();
  client.Send(kEcho);
  client.Close();
  CHECK(Eventually([&] { return fixture.disconnects == 1; }));
  CHECK(writer->gone());
}

TEST_CASE("requests that arrive in pieces behind a pending one are answered after it") {
  Fixture fixture;
  RawHttpClient client(fixture.server->port());
  client.Send(kHold);
  const std::shared_ptr<ResponseWriter> writer = fixture.Held();
  const std::string echo = kEcho;
  client.Send(echo.substr(0, 20));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  client.Send(echo.substr(20, 20));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  writer->Send({200, "text/plain", {}, "first"});
  CHECK(Has(client.RoundTrip(""), "first"));
  CHECK(Has(client.RoundTrip(echo.substr(40)), "\r\n\r\nhello"));
  CHECK(Has(client.RoundTrip(kEcho), "\r\n\r\nhello"));
}

TEST_CASE("empty lines before a request line are skipped, at the start and between requests") {
  Fixture fixture;
  RawHttpClient client(fixture.server->port());
  CHECK(Has(client.RoundTrip("\r\n\r\n" + std::string(kEcho)), "\r\n\r\nhello"));
  CHECK(Has(client.RoundTrip("\r\n" + std::string(kEcho) + "\r\n"), "\r\n\r\nhello"));
  CHECK(Has(client.RoundTrip(kEcho), "\r\n\r\nhello"));
}

TEST_CASE("a transfer coding other than chunked is 400 and ends the connection") {
  Fixture fixture;
  const std::string coding = GENERATE(
      values<std::string>({"Transfer-Encoding: gzip\r\n", "Transfer-Encoding: gzip, chunked\r\n",
                           "Transfer-Encoding: gzip\r\nContent-Length: 0\r\n",
                           "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"}));
  RawHttpClient client(fixture.server->port());
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\n" + coding + "\r\n" + kEcho);
  const std::string answer = client.ReadToEnd();
  INFO(answer);
  CHECK(Has(answer, "HTTP/1.1 400 "));
  CHECK(Has(answer, "Connection: close\r\n"));
  CHECK_FALSE(Has(answer, "hello"));
  CHECK(client.closed());
}

TEST_CASE("broken chunked framing is 400 and ends the connection") {
  Fixture fixture;
  const std::string body =
      GENERATE(values<std::string>({"zz\r\nabc\r\n0\r\n\r\n", "3\r\nabcdef\r\n0\r\n\r\n"}));
  RawHttpClient client(fixture.server->port());
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + body);
  const std::string answer = client.ReadToEnd();
  CHECK(Has(answer, "HTTP/1.1 400 "));
  CHECK(Has(answer, "error:malformed request body"));
  CHECK(client.closed());
}

TEST_CASE("an encoded body is 415") {
  Fixture fixture;
  RawHttpClient client(fixture.server->port());
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nxx");
  CHECK(Has(client.ReadToEnd(), "HTTP/1.1 415 Unsupported Media Type\r\n"));
}

TEST_CASE("HEAD is answered as GET without a body") {
  Fixture fixture;
  RawHttpClient client(fixture.server->port());
  client.Send(
      "HEAD /query?abc HTTP/1.1\r\nHost: x\r\nX-Request-Id: i\r\nConnection: close\r\n\r\n");
  const std::string answer = client.ReadToEnd();
  CHECK(Has(answer, "HTTP/1.1 200 OK\r\n"));
  CHECK(Has(answer, "Content-Length: 5\r\n"));
  CHECK(answer.substr(answer.size() - 4) == "\r\n\r\n");
}

TEST_CASE("a server without a router answers 503 until it gets one") {
  Fixture fixture;
  auto early = HttpServer::Start({}, nullptr, PlainError);
  REQUIRE(early.ok());
  RawHttpClient client((*early)->port());
  CHECK(Has(client.RoundTrip(kEcho), "HTTP/1.1 503 "));
  (*early)->SetRouter(&fixture.router);
  CHECK(Has(client.RoundTrip(kEcho), "\r\n\r\nhello"));
}

TEST_CASE("answers end their connections while the server drains") {
  Fixture fixture;
  RawHttpClient client(fixture.server->port());
  CHECK(Has(client.RoundTrip(kEcho), "Connection: keep-alive\r\n"));
  fixture.server->BeginDrain();
  client.Send(kEcho);
  CHECK(Has(client.ReadToEnd(), "Connection: close\r\n"));
  CHECK(client.closed());
}

TEST_CASE(
    "an answer that promised to keep its connection keeps it, though the server drains since") {
  // on_access runs between the last byte of the answer and what becomes of its connection.
  std::atomic<HttpServer*> draining{nullptr};
  HttpServerOptions options;
  options.on_access = [&](const HttpAccess&) {
    if (HttpServer* const server = draining.load()) server->BeginDrain();
  };
  Fixture fixture(options);
  draining.store(fixture.server.get());
  RawHttpClient client(fixture.server->port());
  CHECK(Has(client.RoundTrip(kEcho), "Connection: keep-alive\r\n"));
  client.Send(kEcho);
  CHECK(Has(client.ReadToEnd(), "Connection: close\r\n"));
  CHECK(client.closed());
}

TEST_CASE(
    "an answer that starts while the server drains ends its connection, though its request came "
    "before") {
  Fixture fixture;
  RawHttpClient client(fixture.server->port());
  client.Send(kHold);
  const std::shared_ptr<ResponseWriter> held = fixture.Held();
  fixture.server->BeginDrain();
  held->Send({});
  CHECK(Has(client.ReadToEnd(), "Connection: close\r\n"));
  CHECK(client.closed());
}

TEST_CASE("a connection that cannot be accepted is reported and served later") {
  std::mutex mutex;
  std::string reported;
  HttpServerOptions options;
  options.on_accept_failure = [&](const std::string& message) {
    const std::lock_guard<std::mutex> lock(mutex);
    reported = message;
  };
  Fixture fixture(options);
  const int free_fd = dup(0);
  REQUIRE(free_fd >= 0);
  close(free_fd);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  // The client gets the last descriptor that there is.
  const rlimit tight{static_cast<rlim_t>(free_fd) + 1, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &tight) == 0);
  RawHttpClient client(fixture.server->port());
  const bool told = Eventually([&] {
    const std::lock_guard<std::mutex> lock(mutex);
    return Has(reported, "cannot accept a connection");
  });
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(told);
  CHECK(Has(client.RoundTrip(kEcho), "\r\n\r\nhello"));
}

TEST_CASE("every request is told to the access log once") {
  std::mutex mutex;
  std::vector<HttpAccess> log;
  HttpServerOptions options;
  options.on_access = [&](const HttpAccess& access) {
    const std::lock_guard<std::mutex> lock(mutex);
    log.push_back(access);
  };
  const auto size = [&] {
    const std::lock_guard<std::mutex> lock(mutex);
    return log.size();
  };
  Fixture fixture(options);
  RawHttpClient client(fixture.server->port());
  client.RoundTrip("GET /query?secret HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\n\r\n");
  REQUIRE(Eventually([&] { return size() == 1; }));
  client.Send(kHold);
  const std::shared_ptr<ResponseWriter> writer = fixture.Held();
  client.Close();
  REQUIRE(Eventually([&] { return size() == 2; }));
  RawHttpClient garbage(fixture.server->port());
  garbage.Send("hello\r\n\r\n");
  garbage.ReadToEnd();
  REQUIRE(Eventually([&] { return size() == 3; }));
  CHECK(log[0].method == "GET");
  CHECK(log[0].path == "/query");
  CHECK(log[0].status == 200);
  CHECK(log[0].request_id == "mine");
  CHECK(log[0].complete);
  CHECK(log[1].status == 499);
  CHECK_FALSE(log[1].complete);
  CHECK(log[2].method == "-");
  CHECK(log[2].status == 400);
}

TEST_CASE("a client that does not read fills a bounded buffer and is then given up") {
  HttpServerOptions options;
  options.stream_buffer_limit_bytes = 256 << 10;
  Fixture fixture(options);
  RawHttpClient client(fixture.server->port());
  client.Send(kHold);
  const std::shared_ptr<ResponseWriter> writer = fixture.Held();
  writer->StartStream({"text/event-stream", {}, ""});
  const std::string piece(64 << 10, 'z');
  int64_t taken = 0;
  while (taken < 4096 && writer->Write(piece)) ++taken;
  CHECK(taken < 4096);  // 256 MiB: kernel buffers and ours together are far below
  writer->End();
  const std::string all = client.ReadToEnd();
  CHECK(client.closed());
  CHECK_FALSE(Has(all, "\r\n0\r\n\r\n"));  // a cut stream must not look complete
}

TEST_CASE("an HTTP/1.0 stream is not chunked and ends with the connection") {
  Fixture fixture;
  RawHttpClient client(fixture.server->port());
  client.Send("GET /hold HTTP/1.0\r\n\r\n");
  const std::shared_ptr<ResponseWriter> writer = fixture.Held();
  writer->StartStream({"text/event-stream", {}, ""});
  writer->Write("plain");
  writer->End();
  const std::string all = client.ReadToEnd();
  CHECK(client.closed());
  CHECK_FALSE(Has(all, "chunked"));
  CHECK(all.substr(all.size() - 9) == "\r\n\r\nplain");
}

TEST_CASE("a port in use and a bad host are errors that name them, localhost is none") {
  Fixture fixture;
  HttpServerOptions options;
  options.port = fixture.server->port();
  const auto taken = HttpServer::Start(options, &fixture.router, PlainError);
  REQUIRE_FALSE(taken.ok());
  CHECK(Has(taken.status().message(), std::to_string(options.port)));
  options.host = "localhost";
  options.port = 0;
  CHECK(HttpServer::Start(options, &fixture.router, PlainError).ok());
  options.host = "nowhere";
  CHECK(HttpServer::Start(options, &fixture.router, PlainError).status().code() ==
        StatusCode::kInvalidArgument);
}

TEST_CASE("stopping closes idle and waiting connections") {
  Fixture fixture;
  RawHttpClient idle(fixture.server->port());
  RawHttpClient waiting(fixture.server->port());
  CHECK(Has(idle.RoundTrip(kEcho), "hello"));
  waiting.Send(kHold);
  const std::shared_ptr<ResponseWriter> writer = fixture.Held();
  fixture.server->Stop();
  idle.ReadToEnd();
  waiting.ReadToEnd();
  CHECK(idle.closed());
  CHECK(waiting.closed());
  CHECK(fixture.disconnects == 1);
}

}  // namespace
}  // namespace firesteel
