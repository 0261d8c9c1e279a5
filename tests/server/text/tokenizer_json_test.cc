#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "server/text/bpe_tokenizer.h"
#include "tests/server/text/tiny_tokenizer.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

using Json = nlohmann::json;

// The status after one change of the tiny tokenizer.
Status After(const std::function<void(Json&)>& change) {
  Json json = TinyTokenizerJson();
  json["added_tokens"].push_back(AddedTokenJson(400, "<a>"));
  change(json);
  return ParseBpeTokenizer(json.dump(), "tiny").status();
}

void CheckRefused(const Status& status, StatusCode code, const std::string& named) {
  INFO(status.ToString());
  CHECK(status.code() == code);
  CHECK(status.message().find(named) != std::string::npos);
}

Json SplitJson(const std::string& behavior) {
  return {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", behavior}};
}

}  // namespace

TEST_CASE("the unchanged tiny tokenizer is accepted", "[tokenizer]") {
  CHECK(After([](Json&) {}).ok());
}

TEST_CASE("harmless settings are accepted", "[tokenizer]") {
  CHECK(After([](Json& j) { j["post_processor"] = {{"type", "ByteLevel"}}; }).ok());
  CHECK(After([](Json& j) {
          j["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array()}};
        }).ok());
  CHECK(After([](Json& j) { j["model"]["continuing_subword_prefix"] = ""; }).ok());
  CHECK(After([](Json& j) { j["model"]["unk_token"] = "ab"; }).ok());
  CHECK(After([](Json& j) { j["model"]["merges"] = {"a b"}; }).ok());
}

TEST_CASE("what the reader does not implement is refused by name", "[tokenizer]") {
  const auto refused = [](const std::string& named, const std::function<void(Json&)>& change) {
    CheckRefused(After(change), StatusCode::kUnsupported, named);
  };
  refused("normalizer.type is 'NFKC'", [](Json& j) { j["normalizer"] = {{"type", "NFKC"}}; });
  refused("post_processor.type is 'TemplateProcessing'", [](Json& j) {
    j["post_processor"] = {{"type", "TemplateProcessing"}};
  });
  refused("decoder", [](Json& j) { j["decoder"] = {{"type", "Metaspace"}}; });
  refused("decoder", [](Json& j) { j.erase("decoder"); });
  refused("pre_tokenizer", [](Json& j) { j["pre_tokenizer"] = nullptr; });
  refused("add_prefix_space", [](Json& j) { j["pre_tokenizer"]["add_prefix_space"] = true; });
  refused("'Whitespace'", [](Json& j) { j["pre_tokenizer"] = {{"type", "Whitespace"}}; });
  refused("model.type is 'WordPiece'", [](Json& j) { j["model"]["type"] = "WordPiece"; });
  refused("model.dropout", [](Json& j) { j["model"]["dropout"] = 0.1; });
  refused("end_of_word_suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; });
  refused("'novelty'", [](Json& j) { j["model"]["novelty"] = 1; });
  refused("'novelty'", [](Json& j) { j["novelty"] = 1; });
  refused("truncation", [](Json& j) { j["truncation"] = {{"max_length", 4}}; });
  for (const std::string key : {"lstrip", "rstrip", "single_word"}) {
    refused("added_tokens[0]." + key, [&](Json& j) { j["added_tokens"][0][key] = true; });
  }
  refused("'<a>' has normalized true", [](Json& j) {
    j["normalizer"] = {{"type", "NFC"}};
    j["added_tokens"][0]["normalized"] = true;
  });
  refused("Contiguous", [](Json& j) {
    Json byte_level = j["pre_tokenizer"];
    j["pre_tokenizer"] = {{"type", "Sequence"},
                          {"pretokenizers", {SplitJson("Contiguous"), byte_level}}};
  });
  refused("pre_tokenizer[1] follows ByteLevel", [](Json& j) {
    Json byte_level = j["pre_tokenizer"];
    j["pre_tokenizer"] = {{"type", "Sequence"},
                          {"pretokenizers", {byte_level, SplitJson("Isolated")}}};
  });
  refused("makes the added token 'ab'",
          [](Json& j) { j["added_tokens"].push_back(AddedTokenJson(300, "ab")); });
}

TEST_CASE("a vocabulary that contradicts itself is refused", "[tokenizer]") {
  const auto refused = [](const std::string& named, const std::function<void(Json&)>& change) {
    CheckRefused(After(change), StatusCode::kInvalidArgument, named);
  };
  refused("used twice", [](Json& j) { j["model"]["vocab"]["zz"] = 65; });
  refused("needs 0..", [](Json& j) { j["model"]["vocab"]["zz"] = -1; });
  refused("needs 0..", [](Json& j) { j["model"]["vocab"]["zz"] = 1 << 24; });
  refused("needs 0..", [](Json& j) { j["model"]["vocab"]["zz"] = 18446744073709551615ULL; });
  refused("not an integer", [](Json& j) { j["model"]["vocab"]["zz"] = 1.5; });
  refused("byte 65 has no token", [](Json& j) { j["model"]["vocab"].erase("A"); });
  refused("'xy', which is not in the vocab", [](Json& j) { j["model"]["merges"] = {"x y"}; });
  refused("'q1'", [](Json& j) { j["model"]["merges"] = {"q1 y"}; });
  refused("repeats the pair", [](Json& j) { j["model"]["merges"] = {"a b", "a b"}; });
  refused("not a pair", [](Json& j) { j["model"]["merges"] = {"ab"}; });
  refused("not a pair", [](Json& j) { j["model"]["merges"] = {"a b c"}; });
  refused("listed twice", [](Json& j) { j["added_tokens"].push_back(AddedTokenJson(401, "<a>")); });
  refused("another token uses",
          [](Json& j) { j["added_tokens"].push_back(AddedTokenJson(65, "<b>")); });
  refused("another token uses",
          [](Json& j) { j["added_tokens"].push_back(AddedTokenJson(400, "<b>")); });
  refused("needs its vocab id 300",
          [](Json& j) { j["added_tokens"].push_back(AddedTokenJson(401, "ab")); });
  refused("content is empty", [](Json& j) { j["added_tokens"][0]["content"] = ""; });
}

TEST_CASE("values of the wrong type give a status", "[tokenizer]") {
  const Json values[] = {Json(), Json(7), Json("x"), Json::array(), Json::object(), Json(true)};
  for (const Json& value : values) {
    INFO(value.dump());
    for (const char* key : {"pre_tokenizer", "decoder", "model"}) {
      CHECK_FALSE(After([&](Json& j) { j[key] = value; }).ok());
    }
    for (const char* key : {"vocab", "merges", "type"}) {
      const bool empty_merges = std::string(key) == "merges" && value.is_array();
      CHECK(After([&](Json& j) { j["model"][key] = value; }).ok() == empty_merges);
    }
    CHECK_FALSE(After([&](Json& j) { j["added_tokens"] = {value}; }).ok());
    CHECK_FALSE(After([&](Json& j) { j["model"]["merges"] = {value}; }).ok());
  }
}

TEST_CASE("a tokenizer file cut anywhere gives a status", "[tokenizer]") {
  const std::string json = TinyTokenizerJson().dump();
  for (size_t kept = 0; kept < json.size(); kept += 13) {
    CHECK_FALSE(ParseBpeTokenizer(json.substr(0, kept), "tiny").ok());
  }
  const std::string message = ParseBpeTokenizer(json.substr(0, 40), "tiny").status().message();
  INFO(message);
  CHECK(message.find("not valid JSON at byte 40 of 40") != std::string::npos);
}

}  // namespace firesteel
