// Reads values of a cached key/value row on the device: the same values as DecodeKvRow.
#pragma once

#include "kernels/core/float_codec.h"
#include "kernels/ops/kv_record.h"

namespace firesteel {

// Values [column, column + 4) of physical row `row`. REQUIRES: column % 4 == 0; width and rope are multiples of 4.
__device__ inline float4 LoadKvQuad(const KvPages& pages, int64_t row, int32_t column) {
  const std::byte* data = KvRowData(pages, row);
  const auto bf16_quad = [](const std::byte* at) {
    const uint2 bits = *reinterpret_cast<const uint2*>(at);
    return float4{BitsFloat(bits.x << 16), BitsFloat(bits.x & 0xffff0000U), BitsFloat(bits.y << 16),
                  BitsFloat(bits.y & 0xffff0000U)};
  };
  const auto fp8_quad = [&](float scale) {
    const uint32_t codes = *reinterpret_cast<const uint32_t*>(data + column);
    return float4{E4M3ToFloat(static_cast<uint8_t>(codes)) * scale,
                  E4M3ToFloat(static_cast<uint8_t>(codes >> 8)) * scale,
                  E4M3ToFloat(static_cast<uint8_t>(codes >> 16)) * scale,
                  E4M3ToFloat(static_cast<uint8_t>(codes >> 24)) * scale};
  };
  switch (pages.format) {
    case KvFormat::kF32: return *reinterpret_cast<const float4*>(data + int64_t{column} * 4);
    case KvFormat::kBf16: return bf16_quad(data + int64_t{column} * 2);
    case KvFormat::kFp8: {
      const int32_t nope = pages.width - pages.rope;
      if (column >= nope) return bf16_quad(data + nope + int64_t{column - nope} * 2);
      const auto* scales = reinterpret_cast<const uint8_t*>(KvRowScale(pages, row));
      return fp8_quad(E8M0ToFloat(scales[column / kFp8Block]));
    }
    default: return fp8_quad(*reinterpret_cast<const float*>(KvRowScale(pages, row)));
  }
}

}  // namespace firesteel
