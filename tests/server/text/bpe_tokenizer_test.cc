#include "server/text/bpe_tokenizer.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/text/tiny_tokenizer.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> Parse(const nlohmann::json& json) {
  auto tokenizer = ParseBpeTokenizer(json.dump(), "tiny");
  INFO(tokenizer.status().ToString());
  REQUIRE(tokenizer.ok());
  return std::move(tokenizer).value();
}

Ids Plain(const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.EncodePlain(text);
  INFO(ids.status().ToString());
  REQUIRE(ids.ok());
  return ids.value();
}

Ids Special(const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.EncodeWithSpecials(text);
  INFO(ids.status().ToString());
  REQUIRE(ids.ok());
  return ids.value();
}

}  // namespace

TEST_CASE("invalid UTF-8 is refused with its byte offset", "[tokenizer]") {
  const auto tokenizer = Parse(TinyTokenizerJson());
  const std::pair<std::string, std::string> cases[] = {
      {"ab\xff", "byte 2"},       {"\xc0\x80", "byte 0"},         {"a\xed\xa0\x80", "byte 1"},
      {"\xe2\x82", "byte 0"},     {"\xf4\x90\x80\x80", "byte 0"}, {"é\x80", "byte 2"},
      {"\xe0\x9f\xbf", "byte 0"}, {"\xf0\x8f\xbf\xbf", "byte 0"}};
  for (const auto& [text, offset] : cases) {
    for (const Status& status :
         {tokenizer->EncodePlain(text).status(), tokenizer->EncodeWithSpecials(text).status()}) {
      INFO(status.ToString());
      CHECK(status.code() == StatusCode::kInvalidArgument);
      CHECK(status.message().find(offset) != std::string::npos);
    }
  }
}

TEST_CASE("the longest added token at the leftmost place wins", "[tokenizer]") {
  nlohmann::json json = TinyTokenizerJson();
  json["added_tokens"] = {AddedTokenJson(400, "<a>"), AddedTokenJson(401, "<a><b>"),
                          AddedTokenJson(402, "><"), AddedTokenJson(403, "<a><b>c")};
  const auto tokenizer = Parse(json);
  CHECK(Special(*tokenizer, "<a><b>") == Ids{401});
  CHECK(Special(*tokenizer, "<a><c>") == Ids{400, '<', 'c', '>'});
  CHECK(Special(*tokenizer, "<a><b>c<a") == Ids{403, '<', 'a'});
  CHECK(Special(*tokenizer, "x><a>") == Ids{'x', 402, 'a', '>'});
  CHECK(Plain(*tokenizer, "<a>") == Ids{'<', 'a', '>'});
}

TEST_CASE("tokens marked normalized are matched after the others", "[tokenizer]") {
  nlohmann::json json = TinyTokenizerJson();
  json["added_tokens"] = {AddedTokenJson(400, "xab"), AddedTokenJson(401, "bc")};
  json["added_tokens"][0]["normalized"] = true;
  const auto tokenizer = Parse(json);
  CHECK(Special(*tokenizer, "xabc") == Ids{'x', 'a', 401});
  CHECK(Special(*tokenizer, "xab") == Ids{400});
}

TEST_CASE("text beside an added token is split on its own", "[tokenizer]") {
  nlohmann::json json = TinyTokenizerJson();
  json["added_tokens"] = {AddedTokenJson(400, "##")};
  const auto tokenizer = Parse(json);
  CHECK(Special(*tokenizer, "a##b") == Ids{'a', 400, 'b'});
  CHECK(Plain(*tokenizer, "ab") == Ids{300});
}

TEST_CASE("ignore_merges takes a vocabulary entry whole", "[tokenizer]") {
  nlohmann::json json = TinyTokenizerJson();
  json["model"]["vocab"]["xyz"] = 310;
  CHECK(Plain(*Parse(json), "xyz") == Ids{'x', 'y', 'z'});
  json["model"]["ignore_merges"] = true;
  CHECK(Plain(*Parse(json), "xyz") == Ids{310});
  CHECK(Plain(*Parse(json), "xyzx") == Ids{'x', 'y', 'z', 'x'});
}

TEST_CASE("ignore_merges never makes an added token of plain text", "[tokenizer]") {
  nlohmann::json json = TinyTokenizerJson();
  json["model"]["vocab"]["xyz"] = 310;
  json["model"]["ignore_merges"] = true;
  json["added_tokens"] = {AddedTokenJson(310, "xyz")};
  CHECK(Plain(*Parse(json), "xyz") == Ids{'x', 'y', 'z'});
  CHECK(Special(*Parse(json), "xyz") == Ids{310});
}

TEST_CASE("NFC composes text before it is split", "[tokenizer]") {
  nlohmann::json json = TinyTokenizerJson();
  json["normalizer"] = {{"type", "NFC"}};
  const auto tokenizer = Parse(json);
  CHECK(tokenizer->Decode(Plain(*tokenizer, "e\u0301"), false) == "\u00e9");
  CHECK(tokenizer->Decode(Plain(*tokenizer, std::string("a\0b", 3)), false) ==
        std::string("a\0b", 3));
}

TEST_CASE("use_regex of ByteLevel splits contractions, words, numbers and spaces", "[tokenizer]") {
  nlohmann::json json = TinyTokenizerJson();
  json["model"]["merges"].push_back({"ab", "Ġ"});
  json["model"]["vocab"]["abĠ"] = 311;
  CHECK(Plain(*Parse(json), "ab 1") == Ids{311, '1'});
  json["pre_tokenizer"]["use_regex"] = true;
  CHECK(Plain(*Parse(json), "ab 1") == Ids{300, ' ', '1'});
}

TEST_CASE("holes of the vocabulary have no bytes and count in its size", "[tokenizer]") {
  nlohmann::json json = TinyTokenizerJson();
  json["added_tokens"] = {AddedTokenJson(400, "<a>")};
  const auto tokenizer = Parse(json);
  CHECK(tokenizer->vocab_size() == 401);
  CHECK(tokenizer->TokenBytes(350, true).empty());
  CHECK(tokenizer->TokenBytes(300, false) == "ab");
  CHECK(tokenizer->TokenBytes(0xff, false) == "\xff");
}

TEST_CASE("added tokens that are not special stay in decoded text", "[tokenizer]") {
  nlohmann::json json = TinyTokenizerJson();
  json["added_tokens"] = {AddedTokenJson(400, "<a>"), AddedTokenJson(401, "<b>")};
  json["added_tokens"][1]["special"] = false;
  const auto tokenizer = Parse(json);
  CHECK(tokenizer->Decode({'x', 400, 401}, false) == "x<b>");
  CHECK(tokenizer->Decode({'x', 400, 401}, true) == "x<a><b>");
}

TEST_CASE("decoding replaces bytes that form no character", "[tokenizer]") {
  const auto tokenizer = Parse(TinyTokenizerJson());
  CHECK(tokenizer->Decode({'a', 0xff, 'b', 0xe2, 0x82}, false) == "a\ufffdb\ufffd");
  CHECK(tokenizer->Decode({0xe2, 0x82, 0xac}, false) == "€");
}

TEST_CASE("a missing tokenizer file is not found", "[tokenizer]") {
  CHECK(LoadBpeTokenizer("/nonexistent").status().code() == StatusCode::kNotFound);
}

}  // namespace firesteel
