// Four neighbouring columns of a weight row as fp32, from any checkpoint storage; linear.h defines the values.
#pragma once

#include <cstdint>

#include "kernels/core/float_codec.h"
#include "kernels/ops/linear/linear.h"

namespace firesteel {

__device__ inline bool IsAligned(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// x[0 .. 4) as fp32; entries at or past `count` are 0 and not read. One load where the address allows it.
__device__ inline void LoadBf16Quad(const uint16_t* x, int32_t count, float out[4]) {
  if (count >= 4 && IsAligned(x, 8)) {
    const uint2 bits = *reinterpret_cast<const uint2*>(x);
    out[0] = BitsFloat(bits.x << 16);
    out[1] = BitsFloat(bits.x & 0xffff0000U);
    out[2] = BitsFloat(bits.y << 16);
    out[3] = BitsFloat(bits.y & 0xffff0000U);
    return;
  }
  for (int32_t j = 0; j < 4; ++j) out[j] = j < count ? Bf16ToFloat(x[j]) : 0.0F;
}

__device__ inline void LoadF32Quad(const float* x, int32_t count, float out[4]) {
  if (count >= 4 && IsAligned(x, 16)) {
    const float4 values = *reinterpret_cast<const float4*>(x);
    out[0] = values.x;
    out[1] = values.y;
    out[2] = values.z;
    out[3] = values.w;
    return;
  }
  for (int32_t j = 0; j < 4; ++j) out[j] = j < count ? x[j] : 0.0F;
}

// Columns [k, k + 4) of row `o`; those at or past w.in are 0. REQUIRES: k % 4 == 0; w.in % 32 == 0 and w.block % 32 == 0 for
// the formats with scales.
__device__ inline void DecodeQuad(const Weight& w, int64_t o, int32_t k, float out[4]) {
  const int32_t count = w.in - k;
  switch (w.dtype) {
    case DType::kF32:
      return LoadF32Quad(static_cast<const float*>(w.data) + o * w.in + k, count, out);
    case DType::kF8E4M3: {
      const int64_t tiles_in = CeilDiv(w.in, w.block);
      const float scale = E8M0ToFloat(w.scale[o / w.block * tiles_in + k / w.block]);
      const uint8_t* codes = static_cast<const uint8_t*>(w.data) + o * w.in + k;
      for (int32_t j = 0; j < 4; ++j) out[j] = E4M3ToFloat(codes[j]) * scale;
      return;
    }
    case DType::kF4E2M1x2: {
      const float scale = E8M0ToFloat(w.scale[o * (w.in / 32) + k / 32]);
      const uint8_t* pairs = static_cast<const uint8_t*>(w.data) + o * (w.in / 2) + k / 2;
      for (int32_t j = 0; j < 4; ++j) {
        const uint8_t pair = pairs[j / 2];
        const uint8_t nibble = static_cast<uint8_t>(j % 2 == 0 ? pair & 15U : pair >> 4);
        out[j] = E2M1ToFloat(nibble) * scale;
      }
      return;
    }
    default: return LoadBf16Quad(static_cast<const uint16_t*>(w.data) + o * w.in + k, count, out);
  }
}

}  // namespace firesteel
