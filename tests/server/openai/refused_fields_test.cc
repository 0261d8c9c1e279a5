// Options of other servers that would change the answer, and their values that change nothing.
#include <nlohmann/json.hpp>

#include "tests/server/openai/openai_fixture.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

using Json = nlohmann::json;

HttpResponse PostWith(OpenAiFixture* fixture, const std::string& name, const std::string& value) {
  return fixture->Post("/v1/completions",
                       Json{{"prompt", "ab"}, {name, Json::parse(value)}}.dump());
}

TEST_CASE("an option of another server that would change the output is refused by name") {
  OpenAiFixture fixture;
  const auto [name, value] = GENERATE(table<std::string, std::string>({
      {"thinking", R"({"type":"enabled"})"},
      {"enable_thinking", "true"},
      {"reasoning", R"({"effort":"high"})"},
      {"repeat_penalty", "1.1"},
      {"mirostat", "2"},
      {"xtc_probability", "0.5"},
      {"dry_multiplier", "0.8"},
      {"samplers", "[\"top_k\"]"},
      {"tfs_z", "0.5"},
      {"top_a", "0.1"},
      {"typical", "0.9"},
      {"n_probs", "3"},
      {"max_output_tokens", "5"},
      {"stop_sequences", "[\"a\"]"},
      {"n_predict", "5"},
      {"max_new_tokens", "5"},
      {"no_stop_trim", "true"},
      {"structural_tag", "{}"},
      {"detokenize", "false"},
      {"bad_words_ids", "[[1]]"},
      {"guidance_scale", "2"},
      {"cache_salt", "\"tenant\""},
  }));
  const HttpResponse response = PostWith(&fixture, name, value);
  REQUIRE(response.status == 400);
  CHECK(Json::parse(response.body)["error"]["param"] == name);
  CHECK(fixture.engine.submitted().empty());
}

TEST_CASE("an option of another server at its neutral value is accepted") {
  OpenAiFixture fixture;
  const auto [name, value] = GENERATE(table<std::string, std::string>({
      {"thinking", R"({"type":"disabled"})"},
      {"enable_thinking", "false"},
      {"repeat_penalty", "1.0"},
      {"mirostat", "0"},
      {"mirostat_tau", "5"},
      {"dry_multiplier", "0.0"},
      {"detokenize", "true"},
      {"stop_sequences", "[]"},
      {"cache_salt", "\"\""},
  }));
  CHECK(PostWith(&fixture, name, value).status == 200);
}

}  // namespace
}  // namespace firesteel
