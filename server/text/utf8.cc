#include "server/text/utf8.h"

#include <cstdint>

#include "kernels/core/check.h"

namespace firesteel {
namespace {

uint8_t ByteAt(std::string_view text, size_t index) { return static_cast<uint8_t>(text[index]); }

// Length of the character that starts with `lead` and the range of its second byte (table 3-7 of
// the Unicode standard); length 0 for a byte that starts none.
struct LeadByte {
  size_t byte_count;
  uint8_t second_low;
  uint8_t second_high;
};

LeadByte Classify(uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xc2) return {0, 0, 0};
  if (lead < 0xe0) return {2, 0x80, 0xbf};
  if (lead == 0xe0) return {3, 0xa0, 0xbf};
  if (lead == 0xed) return {3, 0x80, 0x9f};
  if (lead < 0xf0) return {3, 0x80, 0xbf};
  if (lead == 0xf0) return {4, 0x90, 0xbf};
  if (lead < 0xf4) return {4, 0x80, 0xbf};
  if (lead == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

}  // namespace

Utf8Unit NextUtf8Unit(std::string_view text) {
  FIRESTEEL_DCHECK(!text.empty(), "there is no unit in an empty text");
  const LeadByte lead = Classify(ByteAt(text, 0));
  if (lead.byte_count == 0) return {Utf8Unit::Kind::kInvalid, 1};
  for (size_t i = 1; i < lead.byte_count; ++i) {
    if (i == text.size()) return {Utf8Unit::Kind::kIncomplete, i};
    const uint8_t low = i == 1 ? lead.second_low : uint8_t{0x80};
    const uint8_t high = i == 1 ? lead.second_high : uint8_t{0xbf};
    if (ByteAt(text, i) < low || ByteAt(text, i) > high) return {Utf8Unit::Kind::kInvalid, i};
  }
  return {Utf8Unit::Kind::kComplete, lead.byte_count};
}

std::optional<size_t> FindInvalidUtf8(std::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    const Utf8Unit unit = NextUtf8Unit(text.substr(offset));
    if (unit.kind != Utf8Unit::Kind::kComplete) return offset;
    offset += unit.byte_count;
  }
  return std::nullopt;
}

}  // namespace firesteel
