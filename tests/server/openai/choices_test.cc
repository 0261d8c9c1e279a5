// Answers with several choices, log-probabilities and echoed prompts.
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/server/openai/openai_fixture.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

using Json = nlohmann::json;

const char kCompletions[] = "/v1/completions";
const char kChat[] = "/v1/chat/completions";

// What ScriptAbc says, with the log-probabilities that the request asked for: token t has -t.
std::vector<TokenEvent> ScriptLogprobs(const Request& request) {
  std::vector<TokenEvent> events = ScriptAbc(request);
  const SamplingParams& sampling = request.sampling;
  for (TokenEvent& event : events) {
    for (const int32_t token : event.tokens) {
      if (sampling.logprobs < 0) break;
      event.logprobs.push_back(
          ScriptedLogprobs(token, -static_cast<float>(token), sampling.logprobs));
    }
  }
  if (sampling.prompt_logprobs < 0) return events;
  TokenEvent prompt = ScriptedEvent({}, false, 0);
  prompt.prompt_logprobs_start = 1;
  for (size_t i = 1; i < request.prompt.size(); ++i) {
    prompt.prompt_logprobs.push_back(
        ScriptedLogprobs(request.prompt[i], -0.5F, sampling.prompt_logprobs));
  }
  events.insert(events.begin(), prompt);
  return events;
}

// The JSON of the data lines without [DONE].
std::vector<Json> Chunks(const std::string& stream) {
  std::vector<Json> chunks;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find("\n\n", at);
    REQUIRE(end != std::string::npos);
    const std::string data = stream.substr(at + 6, end - at - 6);
    if (data != "[DONE]") chunks.push_back(Json::parse(data));
    at = end + 2;
  }
  return chunks;
}

// The lists of all chunks' logprobs under `key`, joined.
Json Joined(const std::vector<Json>& chunks, const char* key) {
  Json joined = Json::array();
  for (const Json& chunk : chunks) {
    const Json& logprobs = chunk["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const Json& item : logprobs[key]) joined.push_back(item);
  }
  return joined;
}

TEST_CASE("a completion reports tokens, their log-probabilities, alternatives and offsets") {
  OpenAiFixture fixture(ScriptLogprobs);
  const HttpResponse response = fixture.Post(kCompletions, R"({"prompt":"ab","logprobs":2})");
  const Json logprobs = Json::parse(response.body)["choices"][0]["logprobs"];
  CHECK(logprobs["tokens"] == Json({"a", "b", "c", ""}));
  CHECK(logprobs["token_logprobs"] == Json({-1.0, -2.0, -3.0, 0.0}));
  CHECK(logprobs["text_offset"] == Json({0, 1, 2, 3}));
  REQUIRE(logprobs["top_logprobs"].size() == 4);
  CHECK(logprobs["top_logprobs"][0] == Json({{"a", -1.0}, {"b", -2.0}}));
}

TEST_CASE("with no alternatives the chosen token is still among the top of a completion") {
  OpenAiFixture fixture(ScriptLogprobs);
  const HttpResponse response = fixture.Post(kCompletions, R"({"prompt":"ab","logprobs":0})");
  const Json logprobs = Json::parse(response.body)["choices"][0]["logprobs"];
  CHECK(logprobs["top_logprobs"][1] == Json({{"b", -2.0}}));
}

TEST_CASE("a chat reports each token with its bytes and alternatives in order") {
  OpenAiFixture fixture(ScriptLogprobs);
  const HttpResponse response = fixture.Post(
      kChat, R"({"messages":[{"role":"user","content":"ab"}],"logprobs":true,"top_logprobs":2})");
  const Json logprobs = Json::parse(response.body)["choices"][0]["logprobs"];
  REQUIRE(logprobs["content"].size() == 4);
  CHECK(logprobs["content"][2] ==
        Json::parse(R"({"token":"c","logprob":-3.0,"bytes":[99],"top_logprobs":[
            {"token":"c","logprob":-3.0,"bytes":[99]},{"token":"EN","logprob":-4.0,"bytes":[69,78]}]})"));
}

TEST_CASE("a chat without top_logprobs has empty lists of alternatives") {
  OpenAiFixture fixture(ScriptLogprobs);
  const HttpResponse response =
      fixture.Post(kChat, R"({"messages":[{"role":"user","content":"ab"}],"logprobs":true})");
  const Json logprobs = Json::parse(response.body)["choices"][0]["logprobs"];
  CHECK(logprobs["content"].at(0)["top_logprobs"] == Json::array());
}

TEST_CASE("parts of one character keep their bytes and the offset of the whole") {
  OpenAiFixture fixture([](const Request&) {
    TokenEvent event = ScriptedEvent({6, 7, 1}, false, 0, FinishReason::kLength);
    for (const int32_t token : event.tokens) {
      event.logprobs.push_back(ScriptedLogprobs(token, -1.0F, 0));
    }
    return std::vector<TokenEvent>{event};
  });
  const Json text = Json::parse(fixture.Post(kCompletions, R"({"prompt":"a","logprobs":0})").body);
  const Json logprobs = text["choices"][0]["logprobs"];
  CHECK(logprobs["tokens"] == Json({"bytes:\\xf0\\x9f", "bytes:\\x98\\x80", "a"}));
  CHECK(logprobs["text_offset"] == Json({0, 1, 1}));
  const Json chat = Json::parse(
      fixture.Post(kChat, R"({"messages":[{"role":"user","content":"a"}],"logprobs":true})").body);
  CHECK(chat["choices"][0]["logprobs"]["content"][0]["bytes"] == Json({0xF0, 0x9F}));
}

TEST_CASE("a probability of zero is written as -9999") {
  OpenAiFixture fixture([](const Request&) {
    TokenEvent event = ScriptedEvent({1}, false, 0, FinishReason::kLength);
    event.logprobs = {ScriptedLogprobs(1, -std::numeric_limits<float>::infinity(), 1)};
    return std::vector<TokenEvent>{event};
  });
  const Json body = Json::parse(fixture.Post(kCompletions, R"({"prompt":"a","logprobs":1})").body);
  CHECK(body["choices"][0]["logprobs"]["token_logprobs"] == Json({-9999.0}));
  CHECK(body["choices"][0]["logprobs"]["top_logprobs"][0] == Json({{"a", -9999.0}}));
}

TEST_CASE("an echo has the prompt in front, in the text and in the log-probabilities") {
  OpenAiFixture fixture(ScriptLogprobs);
  const HttpResponse response =
      fixture.Post(kCompletions, R"({"prompt":"bc","logprobs":1,"echo":true})");
  const Json body = Json::parse(response.body);
  const Json choice = body["choices"][0];
  CHECK(choice["text"] == "bcabc");
  CHECK(choice["logprobs"]["tokens"] == Json({"b", "c", "a", "b", "c", ""}));
  CHECK(choice["logprobs"]["token_logprobs"] == Json({nullptr, -0.5, -1.0, -2.0, -3.0, 0.0}));
  CHECK(choice["logprobs"]["top_logprobs"][0].is_null());
  CHECK(choice["logprobs"]["top_logprobs"][1] == Json({{"c", -0.5}}));
  CHECK(choice["logprobs"]["text_offset"] == Json({0, 1, 2, 3, 4, 5}));
  CHECK(body["usage"]["completion_tokens"] == 4);
}

TEST_CASE("an echo without log-probabilities is text alone") {
  OpenAiFixture fixture(ScriptLogprobs);
  const Json body = Json::parse(fixture.Post(kCompletions, R"({"prompt":"b","echo":true})").body);
  CHECK(body["choices"][0]["text"] == "babc");
  CHECK(body["choices"][0]["logprobs"].is_null());
}

TEST_CASE("with max_tokens 0 the echo is all there is, also in a stream") {
  OpenAiFixture fixture(ScriptLogprobs);
  const std::string fields = R"("prompt":"bc","logprobs":1,"echo":true,"max_tokens":0)";
  const Json body = Json::parse(fixture.Post(kCompletions, "{" + fields + "}").body);
  CHECK(body["choices"][0]["text"] == "bc");
  CHECK(body["choices"][0]["finish_reason"] == "length");
  CHECK(body["choices"][0]["logprobs"]["token_logprobs"] == Json({nullptr, -0.5}));
  CHECK(body["usage"]["completion_tokens"] == 0);
  const std::vector<Json> chunks =
      Chunks(fixture.Stream(kCompletions, "{\"stream\":true," + fields + "}"));
  REQUIRE(chunks.size() == 2);
  CHECK(chunks[0]["choices"][0]["text"] == "bc");
  CHECK(chunks[1]["choices"][0]["text"] == "");
  CHECK(Joined(chunks, "tokens") == Json({"b", "c"}));
}

TEST_CASE("the chunks of a stream have together what a body has") {
  OpenAiFixture fixture(ScriptLogprobs);
  const std::string fields = R"("prompt":"bc","logprobs":2,"echo":true)";
  const Json body = Json::parse(fixture.Post(kCompletions, "{" + fields + "}").body);
  const std::vector<Json> chunks =
      Chunks(fixture.Stream(kCompletions, "{\"stream\":true," + fields + "}"));
  std::string text;
  for (const Json& chunk : chunks) text += chunk["choices"][0]["text"].get<std::string>();
  CHECK(text == body["choices"][0]["text"]);
  for (const char* key : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    INFO(key);
    CHECK(Joined(chunks, key) == body["choices"][0]["logprobs"][key]);
  }
}

TEST_CASE("each token of a chat stream is in one chunk's content") {
  OpenAiFixture fixture(ScriptLogprobs);
  const std::vector<Json> chunks = Chunks(fixture.Stream(
      kChat, R"({"stream":true,"messages":[{"role":"user","content":"ab"}],"logprobs":true})"));
  CHECK(chunks.front()["choices"][0]["logprobs"].is_null());
  std::string tokens;
  for (const Json& entry : Joined(chunks, "content")) tokens += entry["token"].get<std::string>();
  CHECK(tokens == "abc");
  CHECK(Joined(chunks, "content").size() == 4);
}

TEST_CASE("n choices are numbered prompt by prompt, and usage counts each prompt once") {
  OpenAiFixture fixture([](const Request& request) {
    const int32_t token = request.sampling.seed == 7 ? 1 : 2;
    return std::vector<TokenEvent>{
        ScriptedEvent({request.prompt[0], token}, false, 0, FinishReason::kLength)};
  });
  const Json body =
      Json::parse(fixture.Post(kCompletions, R"({"prompt":["a","bc"],"n":2,"seed":7})").body);
  REQUIRE(body["choices"].size() == 4);
  const char* expected[] = {"aa", "ab", "ba", "bb"};
  for (size_t i = 0; i < 4; ++i) {
    CHECK(body["choices"][i]["index"] == i);
    CHECK(body["choices"][i]["text"] == expected[i]);
  }
  CHECK(body["usage"] ==
        Json({{"prompt_tokens", 3}, {"completion_tokens", 8}, {"total_tokens", 11}}));
}

TEST_CASE("the chunks of a chat with two choices carry their index") {
  OpenAiFixture fixture;
  const std::vector<Json> chunks = Chunks(fixture.Stream(
      kChat, R"({"stream":true,"n":2,"messages":[{"role":"user","content":"ab"}]})"));
  std::string texts[2];
  int finishes[2] = {0, 0};
  for (const Json& chunk : chunks) {
    const Json& choice = chunk["choices"][0];
    const auto index = choice["index"].get<size_t>();
    REQUIRE(index < 2);
    texts[index] += choice["delta"].value("content", "");
    if (!choice["finish_reason"].is_null()) ++finishes[index];
  }
  for (size_t i = 0; i < 2; ++i) {
    CHECK(texts[i] == "abc");
    CHECK(finishes[i] == 1);
  }
}

TEST_CASE("if one of n choices is refused, none of them runs on") {
  OpenAiFixture fixture(nullptr);
  fixture.engine.RefuseAfter(2, ResourceExhausted("the queue is full"));
  CHECK(fixture.Post(kCompletions, R"({"prompt":"a","n":3})").status == 429);
  CHECK(fixture.engine.WaitForAborts(2));
}

}  // namespace
}  // namespace firesteel
