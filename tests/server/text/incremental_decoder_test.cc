#include "server/text/incremental_decoder.h"

#include <random>
#include <string>
#include <vector>

#include "server/text/utf8.h"
#include "tests/server/text/random_text.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

std::string DecodeInTwo(const std::string& bytes, size_t cut) {
  IncrementalDecoder decoder;
  std::string text = decoder.Push(std::string_view(bytes).substr(0, cut));
  text += decoder.Push(std::string_view(bytes).substr(cut));
  return text + decoder.Finish();
}

std::string DecodeByteByByte(const std::string& bytes) {
  IncrementalDecoder decoder;
  std::string text;
  for (const char byte : bytes) text += decoder.Push(std::string_view(&byte, 1));
  return text + decoder.Finish();
}

std::string DecodeAtOnce(const std::string& bytes) {
  IncrementalDecoder decoder;
  std::string text = decoder.Push(bytes);
  return text + decoder.Finish();
}

}  // namespace

TEST_CASE("a character is released with its last byte", "[decoder]") {
  IncrementalDecoder decoder;
  CHECK(decoder.Push("a\xf0") == "a");
  CHECK(decoder.Push("\x9f").empty());
  CHECK(decoder.Push("\x98").empty());
  CHECK(decoder.Push("\x80z") == "😀z");
  CHECK(decoder.Finish().empty());
}

TEST_CASE("bytes that belong to no character are replaced at once", "[decoder]") {
  IncrementalDecoder decoder;
  CHECK(decoder.Push("\x80") == "\ufffd");
  CHECK(decoder.Push("\xff") == "\ufffd");
  CHECK(decoder.Push("\xc0") == "\ufffd");
  CHECK(decoder.Push("\xe2\x82").empty());
  CHECK(decoder.Push("x") == "\ufffdx");
  CHECK(decoder.Push("\xed\xa0\x80") == "\ufffd\ufffd\ufffd");
}

TEST_CASE("a lead byte interrupts an unfinished character and starts its own", "[decoder]") {
  CHECK(DecodeAtOnce("\xe2\x82\xe2\x82\xac") == "\ufffd€");
  CHECK(DecodeAtOnce("\xf0\x9f\xc3\xa9") == "\ufffdé");
}

TEST_CASE("Finish replaces an unfinished character once", "[decoder]") {
  IncrementalDecoder decoder;
  CHECK(decoder.Push("\xf0\x9f\x98").empty());
  CHECK(decoder.Finish() == "\ufffd");
  CHECK(decoder.Finish().empty());
}

TEST_CASE("valid text passes unchanged at every cut", "[decoder]") {
  const std::string text = "naïve 東京 😀👩\u200d👩 ½ \ud7ff\ue000";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    INFO("cut " << cut);
    CHECK(DecodeInTwo(text, cut) == text);
  }
  CHECK(DecodeByteByByte(text) == text);
}

TEST_CASE("any bytes decode to the same valid text at every cut", "[decoder]") {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    std::string bytes = RandomUtf8(&random, 8);
    for (int i = 0; i < 3 && !bytes.empty(); ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const std::string expected = DecodeAtOnce(bytes);
    REQUIRE_FALSE(FindInvalidUtf8(expected).has_value());
    REQUIRE(DecodeByteByByte(bytes) == expected);
    for (size_t cut = 0; cut <= bytes.size(); ++cut) REQUIRE(DecodeInTwo(bytes, cut) == expected);
  }
}

TEST_CASE("every push releases whole characters only", "[decoder]") {
  std::mt19937 random(5);
  IncrementalDecoder decoder;
  for (int i = 0; i < 5000; ++i) {
    const char byte = static_cast<char>(random());
    REQUIRE_FALSE(FindInvalidUtf8(decoder.Push(std::string_view(&byte, 1))).has_value());
  }
}

}  // namespace firesteel
