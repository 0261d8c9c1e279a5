// UTF-8 as the Unicode standard defines it: no surrogates, no overlong forms, nothing above U+10FFFF.
// Pure functions, callable from any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace firesteel {

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

struct Utf8Unit {
  enum class Kind {
    kComplete,    // one character
    kIncomplete,  // the text ends inside a character; byte_count is all that is left
    kInvalid,     // no character: replaced by one U+FFFD (the "maximal subpart" rule)
  };
  Kind kind = Kind::kComplete;
  size_t byte_count = 0;  // at least 1
};

// What `text` starts with. REQUIRES: not empty.
Utf8Unit NextUtf8Unit(std::string_view text);

// Byte offset of the first place that is not valid UTF-8.
std::optional<size_t> FindInvalidUtf8(std::string_view text);

}  // namespace firesteel
