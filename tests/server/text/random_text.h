// Random text for property tests, from a fixed seed.
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace firesteel {

inline void AppendUtf8(uint32_t code_point, std::string* text) {
  const auto continuation = [&](int shift) {
    text->push_back(static_cast<char>(0x80 | ((code_point >> shift) & 0x3f)));
  };
  if (code_point < 0x80) {
    text->push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    text->push_back(static_cast<char>(0xc0 | (code_point >> 6)));
    continuation(0);
  } else if (code_point < 0x10000) {
    text->push_back(static_cast<char>(0xe0 | (code_point >> 12)));
    continuation(6);
    continuation(0);
  } else {
    text->push_back(static_cast<char>(0xf0 | (code_point >> 18)));
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

// Valid UTF-8: mostly ASCII and spaces, some of every other plane, no surrogates.
inline std::string RandomUtf8(std::mt19937* random, int characters) {
  std::string text;
  for (int i = 0; i < characters; ++i) {
    const uint32_t value = (*random)();
    switch ((*random)() % 8) {
      case 0: AppendUtf8(value % 0x110000, &text); break;
      case 1: AppendUtf8(0x80 + value % 0x780, &text); break;
      case 2: AppendUtf8(0x4e00 + value % 0x5200, &text); break;
      case 3: text += " \n\r\t<|>'"[value % 8]; break;
      default: AppendUtf8(value % 0x80, &text); break;
    }
    // A surrogate is the one three-byte form that is not valid: ED A0..BF xx.
    const size_t size = text.size();
    if (size >= 3 && text[size - 3] == '\xed' && static_cast<uint8_t>(text[size - 2]) >= 0xa0) {
      text.resize(size - 3);
    }
  }
  return text;
}

}  // namespace firesteel
