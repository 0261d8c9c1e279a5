// Decoders written from the format definitions with ldexp, independent of the bit tricks of
// kernels/core/float_codec.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace firesteel {

inline double ReferenceE4M3(uint8_t code) {
  const double sign = (code & 0x80U) != 0 ? -1.0 : 1.0;
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(mantissa, -9);
  return sign * std::ldexp(8 + mantissa, exponent - 10);
}

// Nearest e4m3 code by search over all finite codes; a tie goes to the even code, too large values
// to +-448.
inline uint8_t ReferenceToE4M3(float x) {
  const double target = std::fabs(static_cast<double>(x));
  uint8_t best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code < 0x7f; ++code) {
    const double distance = std::fabs(ReferenceE4M3(static_cast<uint8_t>(code)) - target);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = static_cast<uint8_t>(code);
      best_distance = distance;
    }
  }
  if (std::isinf(target)) best = 0x7e;
  return static_cast<uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

inline double ReferenceE8M0(uint8_t code) {
  return code == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, code - 127);
}

inline double ReferenceE2M1(uint8_t nibble) {
  constexpr double kMagnitude[8] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
  return (nibble & 8U) != 0 ? -kMagnitude[nibble & 7U] : kMagnitude[nibble & 7U];
}

inline double ReferenceBf16(uint16_t code) {
  const double sign = (code & 0x8000U) != 0 ? -1.0 : 1.0;
  const int exponent = (code >> 7) & 255;
  const int mantissa = code & 127;
  if (exponent == 255) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, -133);
  return sign * std::ldexp(128 + mantissa, exponent - 134);
}

}  // namespace firesteel
