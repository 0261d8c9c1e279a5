// What is read from a request body, and which bodies are refused with which field named.
#include <nlohmann/json.hpp>

#include "tests/server/openai/openai_fixture.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

using Json = nlohmann::json;

const char kCompletions[] = "/v1/completions";
const char kChat[] = "/v1/chat/completions";

Json ChatBody(const std::string& name, Json value) {
  return Json{{"messages", Json::array({{{"role", "user"}, {"content", "ab"}}})},
              {name, std::move(value)}};
}

Json CompletionBody(const std::string& name, Json value) {
  return Json{{"prompt", "ab"}, {name, std::move(value)}};
}

// The `param` of a 400, or "accepted".
std::string Refused(OpenAiFixture* fixture, const char* path, const std::string& body) {
  const HttpResponse response = fixture->Post(path, body);
  if (response.status == 200) return "accepted";
  REQUIRE(response.status == 400);
  const Json error = Json::parse(response.body)["error"];
  REQUIRE(error["message"].is_string());
  return error["param"].is_null() ? "null" : error["param"].get<std::string>();
}

TEST_CASE("sampling fields reach the engine") {
  OpenAiFixture fixture;
  fixture.Post(
      kCompletions,
      R"({"prompt":"ab","temperature":0.5,"top_p":0.25,"seed":-1,"max_tokens":7,"ignore_eos":true})");
  const SamplingParams sampling = fixture.engine.submitted().at(0).sampling;
  CHECK(sampling.temperature == 0.5F);
  CHECK(sampling.top_p == 0.25F);
  CHECK(sampling.seed == UINT64_MAX);
  CHECK(sampling.max_tokens == 7);
  CHECK(sampling.ignore_eos);
}

TEST_CASE("every sampling option reaches the engine") {
  OpenAiFixture fixture;
  const std::string messages = R"("messages":[{"role":"user","content":"ab"}])";
  const std::string options =
      R"("top_k":3,"min_p":0.25,"presence_penalty":0.5,"frequency_penalty":-1.5,"repetition_penalty":1.25,
         "logit_bias":{"1":5,"3":-100},"min_tokens":2,"max_tokens":7})";
  const bool chat = GENERATE(false, true);
  const std::string body = "{" + (chat ? messages : R"("prompt":"ab")") + "," + options;
  REQUIRE(Refused(&fixture, chat ? kChat : kCompletions, body) == "accepted");
  const SamplingParams sampling = fixture.engine.submitted().at(0).sampling;
  CHECK(sampling.top_k == 3);
  CHECK(sampling.min_p == 0.25F);
  CHECK(sampling.presence_penalty == 0.5F);
  CHECK(sampling.frequency_penalty == -1.5F);
  CHECK(sampling.repetition_penalty == 1.25F);
  CHECK(sampling.logit_bias == std::map<int32_t, float>{{1, 5.0F}, {3, -100.0F}});
  CHECK(sampling.min_tokens == 2);
  CHECK(sampling.logprobs == -1);
  CHECK(sampling.prompt_logprobs == -1);
}

TEST_CASE("a top_k of -1 keeps all tokens, as 0 does") {
  OpenAiFixture fixture;
  fixture.Post(kCompletions, CompletionBody("top_k", -1).dump());
  CHECK(fixture.engine.submitted().at(0).sampling.top_k == 0);
}

TEST_CASE("stop token ids join the model's end tokens, or replace those that are ignored") {
  OpenAiFixture fixture;
  const bool ignore_eos = GENERATE(false, true);
  const Json body = {{"prompt", "ab"}, {"stop_token_ids", {3, 2}}, {"ignore_eos", ignore_eos}};
  REQUIRE(Refused(&fixture, kCompletions, body.dump()) == "accepted");
  const Request request = fixture.engine.submitted().at(0);
  CHECK(request.stop_tokens ==
        (ignore_eos ? std::vector<int32_t>{3, 2} : std::vector<int32_t>{3, 2, 0}));
  CHECK_FALSE(request.sampling.ignore_eos);
}

TEST_CASE("a bad word is forbidden at the start and behind a space") {
  OpenAiFixture fixture;
  fixture.Post(kCompletions, CompletionBody("bad_words", {"ab", " EN"}).dump());
  // "EN" is also a piece with its space, "ab" is not: what ends like the bare word is covered by it.
  CHECK(fixture.engine.submitted().at(0).sampling.bad_words ==
        std::vector<std::vector<int32_t>>{{1, 2}, {4}, {9}});
}

TEST_CASE("more bad words than the engine takes are refused at the first one too many") {
  OpenAiFixture fixture;
  std::vector<std::string> words(65, "EN");
  CHECK(Refused(&fixture, kCompletions, CompletionBody("bad_words", words).dump()) == "bad_words");
  // The last one would be refused itself if it were looked at.
  words.back() = std::string(100, 'a');
  const HttpResponse response =
      fixture.Post(kCompletions, CompletionBody("bad_words", words).dump());
  CHECK(response.body.find("more than 64 forms") != std::string::npos);
}

TEST_CASE("log-probabilities are asked for as each route says it") {
  OpenAiFixture fixture;
  fixture.Post(kCompletions, R"({"prompt":"ab","logprobs":0})");
  fixture.Post(kCompletions, R"({"prompt":"ab","logprobs":3,"echo":true})");
  fixture.Post(kChat, ChatBody("logprobs", true).dump());
  Json chat = ChatBody("logprobs", true);
  chat["top_logprobs"] = 20;
  fixture.Post(kChat, chat.dump());
  const std::vector<Request> requests = fixture.engine.submitted();
  REQUIRE(requests.size() == 4);
  CHECK(requests[0].sampling.logprobs == 0);
  CHECK(requests[0].sampling.prompt_logprobs == -1);
  CHECK(requests[1].sampling.logprobs == 3);
  CHECK(requests[1].sampling.prompt_logprobs == 3);
  CHECK(requests[2].sampling.logprobs == 0);
  CHECK(requests[3].sampling.logprobs == 20);
}

TEST_CASE("no output token may be asked for when the prompt is scored, and only then") {
  OpenAiFixture fixture;
  CHECK(Refused(&fixture, kCompletions, R"({"prompt":"ab","max_tokens":0,"echo":true})") ==
        "max_tokens");
  CHECK(Refused(&fixture, kCompletions, R"({"prompt":"ab","max_tokens":0,"logprobs":1})") ==
        "max_tokens");
  CHECK(Refused(&fixture, kCompletions,
                R"({"prompt":"ab","max_tokens":0,"logprobs":1,"echo":true})") == "accepted");
  CHECK(fixture.engine.submitted().at(0).sampling.max_tokens == 1);
}

TEST_CASE("choices of one prompt count their seeds up") {
  OpenAiFixture fixture;
  fixture.Post(kCompletions, R"({"prompt":["a","b"],"n":2,"best_of":2,"seed":7})");
  const std::vector<Request> requests = fixture.engine.submitted();
  REQUIRE(requests.size() == 4);
  CHECK(requests[0].sampling.seed == 7);
  CHECK(requests[1].sampling.seed == 8);
  CHECK(requests[1].prompt == requests[0].prompt);
  CHECK(requests[2].sampling.seed == 7);
  CHECK(requests[2].prompt == std::vector<int32_t>{2});
}

TEST_CASE("absent and null fields take the defaults of their route") {
  OpenAiFixture fixture;
  fixture.Post(kCompletions,
               R"({"prompt":"ab","temperature":null,"stop":null,"max_tokens":null,"stream":null,
                                "stream_options":null,"logprobs":null,"tools":null,"seed":null,"model":null})");
  fixture.Post(kChat, ChatBody("max_tokens", nullptr).dump());
  const std::vector<Request> requests = fixture.engine.submitted();
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].sampling.temperature == 1.0F);
  CHECK(requests[0].sampling.max_tokens == 16);
  CHECK(requests[1].sampling.max_tokens == 126);  // 128 positions less the prompt
  CHECK(requests[0].sampling.seed != requests[1].sampling.seed);
}

TEST_CASE("a token limit beyond the model's length is cut to what is left") {
  OpenAiFixture fixture;
  fixture.Post(kCompletions, CompletionBody("max_tokens", 100000).dump());
  CHECK(fixture.engine.submitted().at(0).sampling.max_tokens == 126);
}

TEST_CASE("max_completion_tokens limits a chat") {
  OpenAiFixture fixture;
  fixture.Post(kChat, ChatBody("max_completion_tokens", 3).dump());
  CHECK(fixture.engine.submitted().at(0).sampling.max_tokens == 3);
}

TEST_CASE("content parts are joined and extra keys of a message are ignored") {
  OpenAiFixture fixture;
  const char body[] =
      R"({"messages":[{"role":"user","type":"text","name":"x","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
          {"role":"assistant","content":null,"tool_calls":[]},{"role":"user","content":"c"}]})";
  CHECK(Refused(&fixture, kChat, body) == "accepted");
  CHECK(fixture.engine.submitted().at(0).prompt == std::vector<int32_t>{1, 2, 3});
}

TEST_CASE("harmless and unknown fields are accepted") {
  OpenAiFixture fixture;
  const char body[] =
      R"({"prompt":"ab","user":"u","metadata":{"a":"b"},"store":false,"service_tier":"auto","prediction":null,
          "x_unknown":[1],"n":1,"best_of":1,"presence_penalty":0,"frequency_penalty":0.0,"repetition_penalty":1.0,
          "logit_bias":{},"top_k":-1,"min_p":0.0,"echo":false,"suffix":"","response_format":{"type":"text"},
          "stop":[],"stop_token_ids":[],"min_tokens":0,"logprobs":null,"skip_special_tokens":true})";
  CHECK(Refused(&fixture, kCompletions, body) == "accepted");
}

TEST_CASE("an option that would change the output is refused by name") {
  OpenAiFixture fixture;
  const auto [name, value] = GENERATE(table<std::string, std::string>({
      {"best_of", "2"},
      {"suffix", "\"x\""},
      {"length_penalty", "1.1"},
      {"allowed_token_ids", "[1]"},
      {"response_format", R"({"type":"json_object"})"},
      {"guided_json", "{}"},
      {"use_beam_search", "true"},
  }));
  CHECK(Refused(&fixture, kCompletions, CompletionBody(name, Json::parse(value)).dump()) == name);
  CHECK(fixture.engine.submitted().empty());
}

TEST_CASE("a chat option that would change the output is refused by name") {
  OpenAiFixture fixture;
  const auto [name, value] = GENERATE(table<std::string, std::string>({
      {"best_of", "2"},
      {"top_logprobs", "3"},
      {"echo", "true"},
      {"tools", R"([{"type":"function","function":{"name":"f"}}])"},
      {"tool_choice", "\"required\""},
      {"functions", "[{}]"},
      {"response_format", R"({"type":"json_schema"})"},
      {"reasoning_effort", "\"high\""},
      {"chat_template_kwargs", R"({"thinking":true})"},
      {"add_generation_prompt", "false"},
  }));
  CHECK(Refused(&fixture, kChat, ChatBody(name, Json::parse(value)).dump()) == name);
}

TEST_CASE("chat options at their neutral value are accepted") {
  OpenAiFixture fixture;
  const auto [name, value] = GENERATE(table<std::string, std::string>({
      {"tools", "[]"},
      {"tool_choice", "\"none\""},
      {"tool_choice", "\"auto\""},
      {"logprobs", "false"},
      {"top_logprobs", "0"},
      {"parallel_tool_calls", "true"},
      {"chat_template_kwargs", "{}"},
      {"chat_template_kwargs", R"({"enable_thinking":false})"},
      {"modalities", "[\"text\"]"},
  }));
  CHECK(Refused(&fixture, kChat, ChatBody(name, Json::parse(value)).dump()) == "accepted");
}

TEST_CASE("wrong types and values out of range are refused by name") {
  OpenAiFixture fixture;
  const auto [name, value] = GENERATE(table<std::string, std::string>({
      {"temperature", "\"hot\""},
      {"temperature", "-0.1"},
      {"temperature", "2.1"},
      {"temperature", "1e999"},
      {"top_p", "0"},
      {"top_p", "1.5"},
      {"max_tokens", "0"},
      {"max_tokens", "1.5"},
      {"max_tokens", "99999999999999999999"},
      {"seed", "1.5"},
      {"seed", "\"x\""},
      {"stop", "5"},
      {"stop", "[1]"},
      {"stop", "[\"\"]"},
      {"stream", "1"},
      {"ignore_eos", "\"yes\""},
      {"model", "7"},
      {"n", "5000000"},
      {"n", "0"},
      {"logprobs", "1000000000"},
      {"logprobs", "21"},
      {"logprobs", "true"},
      {"echo", "1"},
      {"top_k", "-2"},
      {"min_p", "1.1"},
      {"min_tokens", "17"},
      {"presence_penalty", "2.1"},
      {"frequency_penalty", "-2.1"},
      {"repetition_penalty", "0"},
      {"logit_bias", "[]"},
      {"logit_bias", R"({"a":1})"},
      {"logit_bias", R"({"1":1,"01":2})"},
      {"logit_bias", R"({"10":1})"},
      {"logit_bias", R"({"1x":1})"},
      {"logit_bias", R"({"1":100.5})"},
      {"logit_bias", R"({"1":"much"})"},
      {"stop_token_ids", "3"},
      {"stop_token_ids", "[10]"},
      {"stop_token_ids", "[\"a\"]"},
      {"stop_token_ids", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"},
      {"bad_words", "\"a\""},
      {"bad_words", "[7]"},
      {"bad_words", "[\" \"]"},
      {"bad_words", "[\"abcabcabcabcabcabcabcabcabcabcabc\"]"},
      {"prompt", "7"},
      {"prompt", "[]"},
      {"prompt", "[10]"},
      {"prompt", "[-1]"},
      {"prompt", "[1,\"a\"]"},
      {"prompt", "{}"},
      {"prompt", "null"},
      {"prompt", "\"\""},
      {"stream_options", "{}"},
  }));
  // 1e999 is malformed for the JSON reader already: then no field can be named.
  const std::string expected = value == "1e999" ? "null" : name;
  std::string body = R"({"prompt":"ab",")" + name + "\":" + value + "}";
  if (name == "prompt") body = "{\"prompt\":" + value + "}";
  CHECK(Refused(&fixture, kCompletions, body) == expected);
  CHECK(fixture.engine.submitted().empty());
}

TEST_CASE("seventeen stop strings are one too many") {
  OpenAiFixture fixture;
  CHECK(Refused(&fixture, kCompletions,
                CompletionBody("stop", std::vector<std::string>(16, "x")).dump()) == "accepted");
  CHECK(Refused(&fixture, kCompletions,
                CompletionBody("stop", std::vector<std::string>(17, "x")).dump()) == "stop");
}

TEST_CASE("a bad message is named by its place") {
  OpenAiFixture fixture;
  const auto [messages, param] = GENERATE(table<std::string, std::string>({
      {"[]", "messages"},
      {"null", "messages"},
      {"[7]", "messages[0]"},
      {R"([{"content":"a"}])", "messages[0].role"},
      {R"([{"role":"user"}])", "messages[0].content"},
      {R"([{"role":"user","content":7}])", "messages[0].content"},
      {R"([{"role":"user","content":[{"type":"image_url"}]}])", "messages[0].content[0].type"},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text"},
      {R"([{"role":"wizard","content":"a"}])", "messages"},
      {R"([{"role":"user","content":"a"},{"role":"assistant","content":"b","tool_calls":[{}]}])",
       "messages[1].tool_calls"},
  }));
  CHECK(Refused(&fixture, kChat, "{\"messages\":" + messages + "}") == param);
}

TEST_CASE("bodies that are not a JSON object are refused") {
  OpenAiFixture fixture;
  const std::string body =
      GENERATE(as<std::string>(), "", "{", "[]", "7", "\"x\"", "{\"prompt\":\"\\ud83d\"}",
               "{\"prompt\":\"\xFF\"}", "{\"a\":" + std::string(100000, '['));
  CHECK(Refused(&fixture, kCompletions, body) == "null");
}

TEST_CASE("a prompt that fills the model is refused with its length") {
  OpenAiFixture fixture;
  const HttpResponse response =
      fixture.Post(kCompletions, Json{{"prompt", std::vector<int>(128, 1)}}.dump());
  CHECK(response.status == 400);
  const Json error = Json::parse(response.body)["error"];
  CHECK(error["code"] == "context_length_exceeded");
  CHECK(error["param"] == "prompt");
  CHECK(fixture.Post(kCompletions, Json{{"prompt", std::vector<int>(127, 1)}}.dump()).status ==
        200);
}

TEST_CASE("another model's name is 404 with code model_not_found") {
  OpenAiFixture fixture;
  const HttpResponse response = fixture.Post(kCompletions, CompletionBody("model", "gpt-9").dump());
  CHECK(response.status == 404);
  CHECK(Json::parse(response.body)["error"]["code"] == "model_not_found");
  CHECK(Json::parse(response.body)["error"]["param"] == "model");
}

}  // namespace
}  // namespace firesteel
