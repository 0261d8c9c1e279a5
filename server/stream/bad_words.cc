#include "server/stream/bad_words.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/api/sampling_params.h"

namespace firesteel {

Status AddBadWord(const Tokenizer& tokenizer, std::string_view word,
                  std::vector<std::vector<int32_t>>* bad_words) {
  // Before the word is encoded: a request of a million words costs no more than one of too many.
  if (bad_words->size() >= kMaxRequestBadWords) {
    return InvalidArgument("the words have more than " + std::to_string(kMaxRequestBadWords) +
                           " forms with and without a space before them, needs at most " +
                           std::to_string(kMaxRequestBadWords));
  }
  const size_t start = word.find_first_not_of(' ');
  if (start == std::string_view::npos) {
    return InvalidArgument("a string of bad_words is empty, needs more than spaces");
  }
  const std::string bare(word.substr(start));
  FIRESTEEL_ASSIGN_OR_RETURN(std::vector<int32_t> plain, tokenizer.EncodePlain(bare));
  FIRESTEEL_ASSIGN_OR_RETURN(std::vector<int32_t> spaced, tokenizer.EncodePlain(" " + bare));
  // One that ends like the other is forbidden by it.
  const bool covered =
      spaced.size() >= plain.size() && std::equal(plain.rbegin(), plain.rend(), spaced.rbegin());
  bad_words->push_back(std::move(plain));
  if (!covered) bad_words->push_back(std::move(spaced));
  return Status::Ok();
}

}  // namespace firesteel
