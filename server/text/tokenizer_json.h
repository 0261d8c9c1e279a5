// Reads a Hugging Face `tokenizer.json` into plain data, and refuses by name whatever the byte-level BPE tokenizer
// would not reproduce exactly. Called once per model at load; pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/status.h"
#include "server/text/pretokenizer.h"

namespace firesteel {

struct AddedToken {
  int32_t id = -1;
  std::string content;      // not empty, valid UTF-8
  bool special = false;     // dropped from decoded text
  bool normalized = false;  // matched after the others
};

struct TokenizerSpec {
  std::vector<std::pair<std::string, int32_t>> vocab;       // entry in the byte-level alphabet, id
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::vector<AddedToken> added_tokens;
  std::vector<SplitSpec> splits;  // in order of application
  bool ignore_merges = false;     // a piece that is a vocabulary entry is taken whole
  bool nfc = false;               // text is brought into Unicode form NFC first
};

// Ids are 0..2^24-1 each; nothing else about them is checked here. `where` names the file in errors.
Result<TokenizerSpec> ReadTokenizerJson(const std::string& json, const std::string& where);

}  // namespace firesteel
