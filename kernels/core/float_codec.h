// Encoders and decoders of every reduced float format, one definition for host and device.
//
//   bf16   1-8-7, round to nearest even
//   e4m3   OCP fp8 "fn": bias 7, no infinities, 0x7f / 0xff are NaN, saturates at +-448
//   e8m0   2^(byte - 127); 255 is NaN
//   e2m1   fp4: magnitudes 0 .5 1 1.5 2 3 4 6, bit 3 is the sign
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/core/math.h"

namespace firesteel {

FIRESTEEL_HOST_DEVICE inline uint32_t FloatBits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  return std::bit_cast<uint32_t>(x);
#endif
}

FIRESTEEL_HOST_DEVICE inline float BitsFloat(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

FIRESTEEL_HOST_DEVICE inline float Bf16ToFloat(uint16_t x) {
  return BitsFloat(static_cast<uint32_t>(x) << 16);
}

FIRESTEEL_HOST_DEVICE inline uint16_t FloatToBf16(float x) {
  const uint32_t bits = FloatBits(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// The value a bf16 store would leave.
FIRESTEEL_HOST_DEVICE inline float RoundToBf16(float x) { return Bf16ToFloat(FloatToBf16(x)); }

FIRESTEEL_HOST_DEVICE inline float E8M0ToFloat(uint8_t x) {
  if (x == 255) return BitsFloat(0x7fc00000U);
  if (x == 0) return BitsFloat(0x00400000U);  // 2^-127 is subnormal
  return BitsFloat(static_cast<uint32_t>(x) << 23);
}

FIRESTEEL_HOST_DEVICE inline float E4M3ToFloat(uint8_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x80U) << 24;
  const uint32_t magnitude = x & 0x7fU;
  if (magnitude == 0x7fU) return BitsFloat(0x7fc00000U | sign);
  // Placing the 4 exponent and 3 mantissa bits at the top of a float leaves a factor of 2^(127 - 7); the product is
  // exact for subnormals too.
  return BitsFloat(FloatBits(BitsFloat(magnitude << 20) * 0x1p120F) | sign);
}

// Round to nearest even, saturating; NaN stays NaN.
FIRESTEEL_HOST_DEVICE inline uint8_t FloatToE4M3(float x) {
  const uint32_t bits = FloatBits(x);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<uint8_t>(sign | 0x7fU);
  const float a = BitsFloat(magnitude);
  if (a >= 448.0F) return static_cast<uint8_t>(sign | 0x7eU);
  if (a < 0x1p-6F) {
    // Subnormal: multiples of 2^-9. Adding 2^14 rounds the sum's mantissa (ulp 2^-9) to nearest even.
    const float rounded = (a + 0x1p14F) - 0x1p14F;
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(rounded * 0x1p9F));
  }
  const uint32_t rounded = magnitude + 0x7ffffU + ((magnitude >> 20) & 1U);
  const uint32_t code = (rounded >> 20) - ((127U - 7U) << 3);
  return static_cast<uint8_t>(sign | (code > 0x7eU ? 0x7eU : code));
}

FIRESTEEL_HOST_DEVICE inline float E2M1ToFloat(uint8_t nibble) {
  const uint32_t sign = static_cast<uint32_t>(nibble & 8U) << 28;
  return BitsFloat(FloatBits(BitsFloat(static_cast<uint32_t>(nibble & 7U) << 22) * 0x1p126F) |
                   sign);
}

// The ue8m0 exponent byte of the smallest power of two s with amax / s <= limit, for amax > 0 (Open Compute MX rule
// used by the DeepSeek checkpoints: 2^ceil(log2(amax / limit))).
FIRESTEEL_HOST_DEVICE inline uint8_t ScaleExponent(float amax, float limit) {
  const uint32_t bits = FloatBits(amax / limit);
  const uint32_t exponent = bits >> 23;
  return static_cast<uint8_t>((bits & 0x7fffffU) != 0 ? exponent + 1 : exponent);
}

}  // namespace firesteel
