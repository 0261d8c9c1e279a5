// A tokenizer.json with one token per byte (id = byte) and one merge: "ab" is 300.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "server/text/byte_level.h"

namespace firesteel {

inline nlohmann::json AddedTokenJson(int32_t id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

inline nlohmann::json TinyTokenizerJson() {
  nlohmann::json json;
  json["version"] = "1.0";
  json["added_tokens"] = nlohmann::json::array();
  json["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  json["decoder"] = {{"type", "ByteLevel"}};
  json["model"] = {{"type", "BPE"}};
  for (int byte = 0; byte < 256; ++byte) {
    json["model"]["vocab"][ByteLevelCharacter(static_cast<uint8_t>(byte))] = byte;
  }
  json["model"]["vocab"]["ab"] = 300;
  json["model"]["merges"] = nlohmann::json::array();
  json["model"]["merges"].push_back({"a", "b"});
  return json;
}

}  // namespace firesteel
