// Device-side decoding of cached rows to bf16, sixteen bytes at a time.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace firesteel::sm90 {

__device__ __forceinline__ uint32_t ScaledBf16(uint32_t pair, __nv_bfloat162 factor) {
  const __nv_bfloat162 value = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair), factor);
  return *reinterpret_cast<const uint32_t*>(&value);
}

// Two e4m3 codes in the high bytes of two 16-bit lanes -> two bf16, times `factor` = 2^(120 + scale exponent) in both lanes.
// Sign and the seven magnitude bits land 2^120 too low in bf16; the product restores them exactly, subnormals included.
__device__ __forceinline__ uint32_t E4M3PairToBf16(uint32_t high_bytes, __nv_bfloat162 factor) {
  return ScaledBf16(((high_bytes >> 4) & 0x07f007f0U) | (high_bytes & 0x80008000U), factor);
}

// bf16 2^(120 + e) for a ue8m0 byte 127 + e. Exponents above 7 (a row beyond 57,000) saturate.
__device__ __forceinline__ __nv_bfloat162 E4M3Factor(uint32_t scale_byte) {
  const uint32_t exponent = min(scale_byte + 120U, 254U);
  const uint32_t bits = exponent << 7 | exponent << 23;
  return *reinterpret_cast<const __nv_bfloat162*>(&bits);
}

// Sixteen codes -> sixteen bf16 in order.
__device__ __forceinline__ void DecodeE4M3x16(const uint4& codes, uint32_t scale_byte, uint4* low,
                                              uint4* high) {
  const __nv_bfloat162 factor = E4M3Factor(scale_byte);
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  uint32_t out[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Bytes 0, 1 (then 2, 3) into the high halves of two 16-bit lanes.
    out[2 * i] = E4M3PairToBf16(__byte_perm(words[i], 0, 0x1404), factor);
    out[2 * i + 1] = E4M3PairToBf16(__byte_perm(words[i], 0, 0x3424), factor);
  }
  *low = make_uint4(out[0], out[1], out[2], out[3]);
  *high = make_uint4(out[4], out[5], out[6], out[7]);
}

// Of every four of eight bf16, swaps the second and the third; twice gives what was there.
__device__ __forceinline__ uint4 SwapMiddles(const uint4& v) {
  return make_uint4(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632),
                    __byte_perm(v.z, v.w, 0x5410), __byte_perm(v.z, v.w, 0x7632));
}

// DecodeE4M3x16 with the middles of every four swapped, which takes fewer instructions: pairs of codes that are two bytes
// apart need no bytes moved, and left shifts do not load the unit that masks.
__device__ __forceinline__ void DecodeE4M3x16Swapped(const uint4& codes, uint32_t scale_byte,
                                                     uint4* low, uint4* high) {
  const __nv_bfloat162 factor = E4M3Factor(scale_byte);
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  uint32_t out[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t w = words[i];
    const uint32_t even = ((w << 4) & 0x07f007f0U) | ((w << 8) & 0x80008000U);
    const uint32_t odd = ((w >> 4) & 0x07f007f0U) | (w & 0x80008000U);
    out[2 * i] = ScaledBf16(even, factor);
    out[2 * i + 1] = ScaledBf16(odd, factor);
  }
  *low = make_uint4(out[0], out[1], out[2], out[3]);
  *high = make_uint4(out[4], out[5], out[6], out[7]);
}

}  // namespace firesteel::sm90
