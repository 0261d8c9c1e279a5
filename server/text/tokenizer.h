// Text to token ids and back. Implementations are immutable after loading; any thread may call them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"

namespace firesteel {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // User text: bytes that look like a special token stay text. `text` must be valid UTF-8 (InvalidArgument otherwise).
  virtual Result<std::vector<int32_t>> EncodePlain(std::string_view text) const = 0;

  // Template-owned text: added tokens inside `text` become their ids.
  virtual Result<std::vector<int32_t>> EncodeWithSpecials(std::string_view text) const = 0;

  // The id of an added token such as "<｜User｜>", or -1.
  virtual int32_t SpecialTokenId(std::string_view content) const = 0;

  // Raw bytes of one token: may be part of a UTF-8 sequence. Special tokens give an empty string unless
  // `with_specials`. REQUIRES: 0 <= id < vocab_size().
  virtual std::string TokenBytes(int32_t id, bool with_specials) const = 0;

  // Whole decode: bytes of all ids, invalid UTF-8 replaced by U+FFFD.
  virtual std::string Decode(const std::vector<int32_t>& ids, bool with_specials) const = 0;

  virtual int32_t vocab_size() const = 0;
};

}  // namespace firesteel
