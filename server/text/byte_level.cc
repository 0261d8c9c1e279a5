#include "server/text/byte_level.h"

#include <array>

namespace firesteel {
namespace {

constexpr int kByteCount = 256;
constexpr int kFirstSubstitute = 0x100;

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

// Substitutes are handed out in byte order.
constexpr std::array<int, kByteCount> MakeCodePoints() {
  std::array<int, kByteCount> code_points{};
  int next_substitute = kFirstSubstitute;
  for (int byte = 0; byte < kByteCount; ++byte) {
    code_points[static_cast<size_t>(byte)] = StandsForItself(byte) ? byte : next_substitute++;
  }
  return code_points;
}

constexpr std::array<int, kByteCount> kCodePoints = MakeCodePoints();
constexpr int kMaxCodePoint = kFirstSubstitute + 67;  // 68 bytes have a substitute
static_assert(kCodePoints[0xad] == kMaxCodePoint);

constexpr std::array<int, kMaxCodePoint + 1> MakeBytes() {
  std::array<int, kMaxCodePoint + 1> bytes{};
  bytes.fill(-1);
  for (int byte = 0; byte < kByteCount; ++byte) {
    bytes[static_cast<size_t>(kCodePoints[static_cast<size_t>(byte)])] = byte;
  }
  return bytes;
}

constexpr std::array<int, kMaxCodePoint + 1> kBytes = MakeBytes();

}  // namespace

std::string ByteLevelCharacter(uint8_t byte) {
  const int code_point = kCodePoints[byte];
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  std::string character(1, static_cast<char>(0xc0 | (code_point >> 6)));
  character.push_back(static_cast<char>(0x80 | (code_point & 0x3f)));
  return character;
}

std::optional<std::string> ByteLevelDecode(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t i = 0; i < token.size(); ++i) {
    int code_point = static_cast<uint8_t>(token[i]);
    if (code_point >= 0x80) {
      // The alphabet ends below U+0800: longer characters are outside it.
      if ((code_point & 0xe0) != 0xc0 || i + 1 == token.size()) return std::nullopt;
      ++i;
      code_point = ((code_point & 0x1f) << 6) | (static_cast<uint8_t>(token[i]) & 0x3f);
    }
    const int byte = code_point <= kMaxCodePoint ? kBytes[static_cast<size_t>(code_point)] : -1;
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

}  // namespace firesteel
