// Byte-level BPE as Hugging Face `tokenizer.json` describes it: Split regexes (PCRE2 with JIT), ByteLevel, added
// tokens. In decoded text only added tokens marked `special` count as special; the others show their content.
// Anything in the file that this reader does not implement exactly is refused by name.
#pragma once

#include <memory>
#include <string>

#include "kernels/core/status.h"
#include "server/text/tokenizer.h"

namespace firesteel {

// Reads DIR/tokenizer.json.
Result<std::unique_ptr<Tokenizer>> LoadBpeTokenizer(const std::string& model_dir);

// The same from the file's text; `where` names it in errors.
Result<std::unique_ptr<Tokenizer>> ParseBpeTokenizer(const std::string& json,
                                                     const std::string& where);

}  // namespace firesteel
