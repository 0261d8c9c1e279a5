// Token bytes to text, one token at a time, never emitting half a UTF-8 character.
#pragma once

#include <string>
#include <string_view>

namespace firesteel {

class IncrementalDecoder {
 public:
  // Bytes of the next token; returns the text that is now complete (possibly empty). A byte that can never start or
  // continue a character becomes U+FFFD at once. The concatenation of all returns and Finish() does not depend on how
  // the bytes were cut.
  std::string Push(std::string_view token_bytes);

  // Ends the stream: an incomplete character becomes U+FFFD.
  std::string Finish();

 private:
  std::string pending_;  // at most 3 bytes: a proper prefix of one UTF-8 character
};

}  // namespace firesteel
