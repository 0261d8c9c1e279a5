// Forbidden words as the token sequences that the engine forbids. Pure, callable from any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"
#include "server/text/tokenizer.h"

namespace firesteel {

// Appends the sequences that spell `word`. A word may begin a text or follow a space, and most tokenizers spell these
// differently: both are forbidden. InvalidArgument for a word of nothing but spaces, or one that cannot be encoded.
Status AddBadWord(const Tokenizer& tokenizer, std::string_view word,
                  std::vector<std::vector<int32_t>>* bad_words);

}  // namespace firesteel
