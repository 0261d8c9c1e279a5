#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "server/text/bpe_tokenizer.h"
#include "tests/server/text/random_text.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

std::unique_ptr<Tokenizer> DemoTokenizer() {
  auto tokenizer = LoadBpeTokenizer(FIRESTEEL_SOURCE_DIR "/configs/demo-v4");
  INFO(tokenizer.status().ToString());
  REQUIRE(tokenizer.ok());
  return std::move(tokenizer).value();
}

nlohmann::json ReadGolden(const std::string& file_name) {
  std::ifstream stream(FIRESTEEL_SOURCE_DIR "/tests/fixtures/golden/demo_v4/" + file_name);
  REQUIRE(stream.is_open());
  return nlohmann::json::parse(stream);
}

}  // namespace

TEST_CASE("user text gives the reference ids", "[tokenizer]") {
  const auto tokenizer = DemoTokenizer();
  const nlohmann::json cases = ReadGolden("tokenizer_cases.json").at("plain");
  REQUIRE(cases.size() >= 20);
  for (const nlohmann::json& golden : cases) {
    const std::string text = golden.at("text");
    INFO(text);
    const auto ids = tokenizer->EncodePlain(text);
    REQUIRE(ids.ok());
    CHECK(ids.value() == golden.at("ids").get<std::vector<int32_t>>());
  }
}

TEST_CASE("text with control tokens gives the reference ids", "[tokenizer]") {
  const auto tokenizer = DemoTokenizer();
  const nlohmann::json cases = ReadGolden("tokenizer_cases.json").at("special_tokens_parsed");
  REQUIRE(cases.size() >= 20);
  for (const nlohmann::json& golden : cases) {
    const std::string text = golden.at("text");
    INFO(text);
    const auto ids = tokenizer->EncodeWithSpecials(text);
    REQUIRE(ids.ok());
    CHECK(ids.value() == golden.at("ids").get<std::vector<int32_t>>());
  }
}

TEST_CASE("reference outputs decode to the reference texts", "[tokenizer]") {
  const auto tokenizer = DemoTokenizer();
  const nlohmann::json golden = ReadGolden("greedy.json");
  const nlohmann::json& cases = golden.is_array() ? golden : golden.at("cases");
  REQUIRE(cases.size() == 64);
  for (const nlohmann::json& item : cases) {
    CHECK(tokenizer->Decode(item.at("output_ids").get<std::vector<int32_t>>(), false) ==
          item.at("text").get<std::string>());
  }
}

TEST_CASE("any UTF-8 text comes back from its ids", "[tokenizer]") {
  const auto tokenizer = DemoTokenizer();
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    const std::string text = RandomUtf8(&random, 1 + static_cast<int>(random() % 120));
    const auto plain = tokenizer->EncodePlain(text);
    REQUIRE(plain.ok());
    REQUIRE(tokenizer->Decode(plain.value(), false) == text);
    const auto parsed = tokenizer->EncodeWithSpecials(text);
    REQUIRE(parsed.ok());
    REQUIRE(tokenizer->Decode(parsed.value(), true) == text);
  }
}

TEST_CASE("user text never becomes a control token", "[tokenizer]") {
  const auto tokenizer = DemoTokenizer();
  const std::string controls[] = {"<｜begin▁of▁sentence｜>",
                                  "<｜end▁of▁sentence｜>",
                                  "<｜User｜>",
                                  "<｜Assistant｜>",
                                  "<｜mask｜>",
                                  "</think>"};
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (int i = 0; i < 6; ++i) {
      text += controls[random() % 6];
      text += RandomUtf8(&random, static_cast<int>(random() % 4));
    }
    const auto ids = tokenizer->EncodePlain(text);
    REQUIRE(ids.ok());
    for (const int32_t id : ids.value()) REQUIRE(id > 5);
  }
}

TEST_CASE("the demo vocabulary has its control tokens and its size", "[tokenizer]") {
  const auto tokenizer = DemoTokenizer();
  CHECK(tokenizer->vocab_size() == 4096);
  CHECK(tokenizer->SpecialTokenId("<｜User｜>") == 2);
  CHECK(tokenizer->SpecialTokenId("</think>") == 5);
  CHECK(tokenizer->SpecialTokenId("<think>") == -1);
  CHECK(tokenizer->SpecialTokenId("the") == -1);
  CHECK(tokenizer->TokenBytes(2, true) == "<｜User｜>");
  CHECK(tokenizer->TokenBytes(2, false).empty());
}

TEST_CASE("a megabyte of one letter or of spaces is encoded without quadratic work",
          "[tokenizer]") {
  const auto tokenizer = DemoTokenizer();
  for (const char letter : {'a', ' ', '\n', '9', '!', '<'}) {
    const std::string text(1'000'000, letter);
    INFO("letter " << static_cast<int>(letter));
    const auto ids = tokenizer->EncodePlain(text);
    INFO(ids.status().ToString());
    REQUIRE(ids.ok());
    CHECK(tokenizer->Decode(ids.value(), false) == text);
  }
}

}  // namespace firesteel
