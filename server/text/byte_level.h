// The byte-level alphabet of GPT-2 style vocabularies: each byte is written as one printable character, so that a
// vocabulary can be stored as text. Printable Latin-1 bytes stand for themselves, the others are U+0100 and up.
// Pure functions, callable from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace firesteel {

// UTF-8 of the character that stands for `byte`.
std::string ByteLevelCharacter(uint8_t byte);

// The bytes that a vocabulary entry stands for; nullopt when it has a character outside the alphabet (control tokens).
std::optional<std::string> ByteLevelDecode(std::string_view token);

}  // namespace firesteel
