// One client that does not read, beside one that does, over real sockets.
#include <chrono>
#include <string>
#include <thread>

#include "server/http/http_server.h"
#include "tests/server/openai/openai_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/raw_http_client.h"

namespace firesteel {
namespace {

std::string StreamRequest() {
  const std::string body = R"({"prompt":"a","stream":true})";
  return "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

RequestId WaitForRequest(const ScriptedEngine& engine, size_t index) {
  for (int i = 0; i < 200 && engine.submitted().size() <= index; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  REQUIRE(engine.submitted().size() > index);
  return engine.submitted()[index].id;
}

TEST_CASE("a client that does not read is cut at the bound of its buffer and delays nobody") {
  OpenAiFixture fixture(nullptr);
  HttpServerOptions options;
  options.stream_buffer_limit_bytes = 64 << 10;
  Result<std::unique_ptr<HttpServer>> server =
      HttpServer::Start(options, &fixture.router, OpenAiService::FormatError);
  REQUIRE(server.ok());
  RawHttpClient slow((*server)->port());
  slow.Send(StreamRequest());
  const RequestId slow_id = WaitForRequest(fixture.engine, 0);
  RawHttpClient reader((*server)->port());
  reader.Send(StreamRequest());
  const RequestId reader_id = WaitForRequest(fixture.engine, 1);
  CHECK(reader.ReadUntil("\r\n\r\n").find("200 OK") != std::string::npos);

  // 20 KiB of text for the slow one, then a token for the other, which has to arrive at once.
  const std::vector<int32_t> block(20 << 10, 1);
  int rounds = 0;
  for (; rounds < 4096 && fixture.engine.running(slow_id); ++rounds) {
    TokenEvent flood = ScriptedEvent(block, true, 0);
    flood.id = slow_id;
    fixture.engine.Emit(flood);
    TokenEvent token = ScriptedEvent({2}, true, 0);
    token.id = reader_id;
    fixture.engine.Emit(token);
    REQUIRE(reader.ReadUntil("\"text\":\"b\"").find("\"text\":\"b\"") != std::string::npos);
  }
  CHECK_FALSE(fixture.engine.running(slow_id));  // 80 MiB: far more than the sockets hold
  CHECK(fixture.engine.running(reader_id));
  CHECK(fixture.engine.aborted() == std::vector<RequestId>{slow_id});
  // A cut stream must not look complete.
  CHECK(slow.ReadToEnd().find("[DONE]") == std::string::npos);
  (*server)->Stop();
}

}  // namespace
}  // namespace firesteel
