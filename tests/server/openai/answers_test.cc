// What a client of the OpenAI-style routes receives, byte for byte where tools compare bytes.
#include <nlohmann/json.hpp>

#include "tests/server/openai/openai_fixture.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

using Json = nlohmann::json;

const char kCompletions[] = "/v1/completions";
const char kChat[] = "/v1/chat/completions";
const char kHello[] = R"([{"role":"user","content":"ab"}])";

// The JSON of every data line; checks the framing and that [DONE] comes last.
std::vector<Json> Chunks(const std::string& stream) {
  std::vector<Json> chunks;
  size_t at = 0;
  bool done = false;
  while (at < stream.size()) {
    const size_t end = stream.find("\n\n", at);
    REQUIRE(end != std::string::npos);
    const std::string frame = stream.substr(at, end - at);
    at = end + 2;
    REQUIRE(frame.rfind("data: ", 0) == 0);
    REQUIRE(frame.find('\n') == std::string::npos);
    REQUIRE_FALSE(done);
    done = frame == "data: [DONE]";
    if (!done) chunks.push_back(Json::parse(frame.substr(6)));
  }
  REQUIRE(done);
  return chunks;
}

TEST_CASE("a completion answers with text, finish reason and usage") {
  OpenAiFixture fixture;
  const HttpResponse response = fixture.Post(kCompletions, R"({"model":"toy","prompt":"ab"})");
  REQUIRE(response.status == 200);
  const Json body = Json::parse(response.body);
  CHECK(body["object"] == "text_completion");
  CHECK(body["id"] == "cmpl-r1");
  CHECK(body["model"] == "toy");
  CHECK(body["choices"][0]["text"] == "abc");
  CHECK(body["choices"][0]["finish_reason"] == "stop");
  CHECK(body["choices"][0]["logprobs"].is_null());
  CHECK(body["usage"] ==
        Json({{"prompt_tokens", 2}, {"completion_tokens", 4}, {"total_tokens", 6}}));
}

TEST_CASE("a chat answers with an assistant message") {
  OpenAiFixture fixture;
  const HttpResponse response =
      fixture.Post(kChat, R"({"model":"toy","messages":)" + std::string(kHello) + "}");
  REQUIRE(response.status == 200);
  const Json body = Json::parse(response.body);
  CHECK(body["object"] == "chat.completion");
  CHECK(body["choices"][0]["message"] == Json({{"role", "assistant"}, {"content", "abc"}}));
}

TEST_CASE("several prompts become choices in order") {
  OpenAiFixture fixture([](const Request& request) {
    return std::vector<TokenEvent>{ScriptedEvent(request.prompt, false, 0, FinishReason::kLength)};
  });
  const Json body = Json::parse(fixture.Post(kCompletions, R"({"prompt":["ab","c",""]})").body);
  CHECK(body["error"]["param"] == "prompt[2]");
  const std::string prompts = GENERATE(as<std::string>(), R"(["ab","c"])", "[[1,2],[3]]");
  const Json both = Json::parse(fixture.Post(kCompletions, R"({"prompt":)" + prompts + "}").body);
  REQUIRE(both["choices"].size() == 2);
  CHECK(both["choices"][0]["text"] == "ab");
  CHECK(both["choices"][1]["text"] == "c");
  CHECK(both["choices"][1]["index"] == 1);
  CHECK(both["choices"][1]["finish_reason"] == "length");
  CHECK(both["usage"]["prompt_tokens"] == 3);
}

TEST_CASE("one list of token ids is one prompt") {
  OpenAiFixture fixture;
  CHECK(fixture.Post(kCompletions, R"({"prompt":[1,2,3]})").status == 200);
  CHECK(fixture.engine.submitted().at(0).prompt == std::vector<int32_t>{1, 2, 3});
}

TEST_CASE("a chat stream has the role first, deltas, the finish and then [DONE]") {
  OpenAiFixture fixture;
  const std::vector<Json> chunks =
      Chunks(fixture.Stream(kChat, R"({"stream":true,"messages":)" + std::string(kHello) + "}"));
  REQUIRE(chunks.size() >= 3);
  CHECK(chunks.front()["choices"][0]["delta"] == Json({{"role", "assistant"}, {"content", ""}}));
  CHECK(chunks.back()["choices"][0]["delta"] == Json::object());
  CHECK(chunks.back()["choices"][0]["finish_reason"] == "stop");
  std::string text;
  for (size_t i = 0; i < chunks.size(); ++i) {
    CHECK(chunks[i]["id"] == "chatcmpl-r1");
    CHECK(chunks[i]["object"] == "chat.completion.chunk");
    CHECK(chunks[i]["created"] == chunks[0]["created"]);
    CHECK_FALSE(chunks[i].contains("usage"));
    const Json delta = chunks[i]["choices"][0]["delta"];
    if (i > 0 && delta.contains("content")) CHECK_FALSE(delta["content"] == "");
    text += delta.value("content", "");
  }
  CHECK(text == "abc");
}

TEST_CASE("include_usage gives null in every chunk and the counts in a last one without choices") {
  OpenAiFixture fixture;
  const std::vector<Json> chunks = Chunks(fixture.Stream(
      kCompletions, R"({"stream":true,"stream_options":{"include_usage":true},"prompt":"a"})"));
  REQUIRE(chunks.size() >= 2);
  for (size_t i = 0; i + 1 < chunks.size(); ++i) CHECK(chunks[i].at("usage").is_null());
  CHECK(chunks.back()["choices"] == Json::array());
  CHECK(chunks.back()["usage"]["completion_tokens"] == 4);
  CHECK(chunks.back()["usage"]["total_tokens"] == 5);
}

TEST_CASE("continuous usage counts grow with the chunks") {
  OpenAiFixture fixture;
  const std::vector<Json> chunks = Chunks(fixture.Stream(
      kCompletions,
      R"({"stream":true,"prompt":"a","stream_options":{"include_usage":true,"continuous_usage_stats":true}})"));
  CHECK(chunks.front()["usage"]["completion_tokens"] == 1);
  CHECK(chunks.back()["usage"]["completion_tokens"] == 4);
}

TEST_CASE("a stop string ends stream and body at the same text") {
  const auto script = [](const Request&) {
    return std::vector<TokenEvent>{ScriptedEvent({1, 4}, false, 0),
                                   ScriptedEvent({5, 2, 3}, true, 2)};
  };
  OpenAiFixture fixture(script);
  const Json body = Json::parse(fixture.Post(kCompletions, R"({"prompt":"a","stop":"END"})").body);
  CHECK(body["choices"][0]["text"] == "a");
  CHECK(body["choices"][0]["finish_reason"] == "stop");
  CHECK(body["usage"]["completion_tokens"] == 3);
  const std::vector<Json> chunks =
      Chunks(fixture.Stream(kCompletions, R"({"prompt":"a","stop":["x","END"],"stream":true})"));
  std::string text;
  for (const Json& chunk : chunks) text += chunk["choices"][0]["text"].get<std::string>();
  CHECK(text == "a");
}

TEST_CASE("a full queue is 429 with Retry-After, also for a stream") {
  OpenAiFixture fixture;
  fixture.engine.RefuseAfter(0, ResourceExhausted("the queue is full"));
  const HttpResponse response = fixture.Post(kCompletions, R"({"prompt":"a","stream":true})");
  CHECK(response.status == 429);
  CHECK(response.headers == HttpHeaders{{"Retry-After", "1"}});
  CHECK(Json::parse(response.body)["error"]["code"] == "queue_full");
}

TEST_CASE("if one of several prompts is refused, the admitted ones are cancelled") {
  OpenAiFixture fixture(nullptr);
  fixture.engine.RefuseAfter(2, ResourceExhausted("the queue is full"));
  CHECK(fixture.Post(kCompletions, R"({"prompt":["a","b","c"]})").status == 429);
  CHECK(fixture.engine.WaitForAborts(2));
  for (const Request& request : fixture.engine.submitted())
    CHECK_FALSE(fixture.engine.running(request.id));
}

TEST_CASE("draining and failure are 503, on the routes, on /health and on /ready") {
  const std::string path = GENERATE("/health", "/ready");
  OpenAiFixture fixture;
  CHECK(fixture.Start(path, "", "GET")->response.status == 200);
  fixture.engine.BeginDrain();
  fixture.service.BeginDrain();
  CHECK(fixture.Post(kCompletions, R"({"prompt":"a"})").status == 503);
  CHECK(fixture.Start(path, "", "GET")->response.status == 503);
  OpenAiFixture failed;
  failed.engine.SetHealthy(false);
  CHECK(failed.Start(path, "", "GET")->response.status == 503);
}

TEST_CASE("an engine failure is a 500 before the body and an error event in a stream") {
  const auto script = [](const Request&) {
    TokenEvent event = ScriptedEvent({}, false, 0, FinishReason::kError);
    event.error = Internal("the device failed");
    return std::vector<TokenEvent>{ScriptedEvent({1}, false, 0), event};
  };
  OpenAiFixture fixture(script);
  const HttpResponse response = fixture.Post(kCompletions, R"({"prompt":"a"})");
  CHECK(response.status == 500);
  CHECK(Json::parse(response.body)["error"]["message"] == "the device failed");
  const std::vector<Json> chunks =
      Chunks(fixture.Stream(kCompletions, R"({"prompt":"a","stream":true})"));
  CHECK(chunks.back()["error"]["message"] == "the device failed");
}

TEST_CASE("a client that leaves cancels its generations") {
  OpenAiFixture fixture(nullptr);
  const auto writer = fixture.Start(kCompletions, R"({"prompt":["a","b"],"stream":true})");
  REQUIRE(writer->on_disconnect);
  writer->on_disconnect();
  CHECK(fixture.engine.WaitForAborts(2));
}

TEST_CASE("a stream whose client does not take data is aborted") {
  OpenAiFixture fixture(nullptr);
  const auto writer = fixture.Start(kCompletions, R"({"prompt":"a","stream":true})");
  writer->takes = false;
  TokenEvent event = ScriptedEvent({1}, false, 0);
  event.id = fixture.engine.submitted().at(0).id;
  fixture.engine.Emit(event);
  CHECK(fixture.engine.WaitForAborts(1));
}

TEST_CASE("models and version describe the server") {
  OpenAiFixture fixture;
  const Json models = Json::parse(fixture.Start("/v1/models", "", "GET")->response.body);
  CHECK(models["data"][0]["id"] == "toy");
  CHECK(models["data"][0]["max_model_len"] == 128);
  CHECK(Json::parse(fixture.Start("/version", "", "GET")->response.body)["version"] == "1.2.3");
}

TEST_CASE("unknown paths and wrong methods use the same envelope") {
  OpenAiFixture fixture;
  const HttpResponse missing = fixture.Start("/v1/none", "{}")->response;
  CHECK(missing.status == 404);
  CHECK(Json::parse(missing.body)["error"]["type"] == "invalid_request_error");
  CHECK(fixture.Start(kChat, "", "GET")->response.status == 405);
}

}  // namespace
}  // namespace firesteel
