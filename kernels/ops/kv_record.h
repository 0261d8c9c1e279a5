// Storage of one cached key/value row (K == V) and the paged pools they live in. One codec for host and device.
//
//   kF32, kBf16   width values
//   kFp8          DeepSeek-V4 "fp8_ds_mla": (width - rope) e4m3 in blocks of 64 with one ue8m0 scale each, then `rope` bf16;
//                 width 512, rope 64: 576 bytes and 8 scale bytes (one is padding) = 584 per row
//   kFp8Index     width e4m3 with one fp32 scale, amax / 448 (index keys): 132 bytes for width 128
// A page holds block_entries rows and is segregated: all row data first, then all scales; pages start at multiples of 64
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/core/float_codec.h"
#include "kernels/core/math.h"

namespace firesteel {

enum class KvFormat : uint8_t { kF32, kBf16, kFp8, kFp8Index };

inline constexpr int32_t kFp8Block = 64;  // values per ue8m0 scale

// A pool of pages of one layer. Physical row r is entry r % block_entries of block r / block_entries.
struct KvPages {
  std::byte* data = nullptr;
  int64_t page_bytes = 0;
  int32_t block_entries = 1;
  int32_t width = 0;
  int32_t rope = 0;  // trailing values kept in bf16 by kFp8
  KvFormat format = KvFormat::kF32;
};

FIRESTEEL_HOST_DEVICE constexpr int32_t KvDataBytes(KvFormat format, int32_t width, int32_t rope) {
  switch (format) {
    case KvFormat::kF32: return width * 4;
    case KvFormat::kBf16: return width * 2;
    case KvFormat::kFp8: return (width - rope) + rope * 2;
    case KvFormat::kFp8Index: return width;
  }
  return 0;
}

FIRESTEEL_HOST_DEVICE constexpr int32_t KvScaleBytes(KvFormat format, int32_t width, int32_t rope) {
  switch (format) {
    case KvFormat::kFp8: return RoundUp((width - rope) / kFp8Block, 8);
    case KvFormat::kFp8Index: return 4;
    default: return 0;
  }
}

// Bytes of one row, its scales included.
constexpr int64_t KvRecordBytes(KvFormat format, int32_t width, int32_t rope) {
  return KvDataBytes(format, width, rope) + KvScaleBytes(format, width, rope);
}

constexpr int64_t KvPageBytes(KvFormat format, int32_t width, int32_t rope, int32_t entries) {
  return RoundUp(KvRecordBytes(format, width, rope) * entries, int64_t{64});
}

FIRESTEEL_HOST_DEVICE inline std::byte* KvRowData(const KvPages& pages, int64_t row) {
  return pages.data + row / pages.block_entries * pages.page_bytes +
         row % pages.block_entries * KvDataBytes(pages.format, pages.width, pages.rope);
}

FIRESTEEL_HOST_DEVICE inline std::byte* KvRowScale(const KvPages& pages, int64_t row) {
  return pages.data + row / pages.block_entries * pages.page_bytes +
         static_cast<int64_t>(pages.block_entries) *
             KvDataBytes(pages.format, pages.width, pages.rope) +
         row % pages.block_entries * KvScaleBytes(pages.format, pages.width, pages.rope);
}

// Host codec of one row; the CUDA kernels use the same element codecs with their own thread mapping.
inline void EncodeKvRow(const KvPages& pages, int64_t row, const float* x) {
  std::byte* data = KvRowData(pages, row);
  switch (pages.format) {
    case KvFormat::kF32: std::memcpy(data, x, static_cast<size_t>(pages.width) * 4); return;
    case KvFormat::kBf16: {
      uint16_t* out = reinterpret_cast<uint16_t*>(data);
      for (int32_t i = 0; i < pages.width; ++i) out[i] = FloatToBf16(x[i]);
      return;
    }
    case KvFormat::kFp8: {
      uint8_t* codes = reinterpret_cast<uint8_t*>(data);
      uint8_t* scales = reinterpret_cast<uint8_t*>(KvRowScale(pages, row));
      const int32_t nope = pages.width - pages.rope;
      for (int32_t b = 0; b < nope / kFp8Block; ++b) {
        float amax = 1e-4F;
        for (int32_t i = b * kFp8Block; i < (b + 1) * kFp8Block; ++i) {
          amax = Max(amax, x[i] < 0 ? -x[i] : x[i]);
        }
        scales[b] = ScaleExponent(amax, 448.0F);
        const float scale = E8M0ToFloat(scales[b]);
        for (int32_t i = b * kFp8Block; i < (b + 1) * kFp8Block; ++i) {
          codes[i] = FloatToE4M3(x[i] / scale);
        }
      }
      uint16_t* rope = reinterpret_cast<uint16_t*>(codes + nope);
      for (int32_t i = 0; i < pages.rope; ++i) rope[i] = FloatToBf16(x[nope + i]);
      return;
    }
    case KvFormat::kFp8Index: {
      uint8_t* codes = reinterpret_cast<uint8_t*>(data);
      float amax = 1e-4F;
      for (int32_t i = 0; i < pages.width; ++i) amax = Max(amax, x[i] < 0 ? -x[i] : x[i]);
      const float scale = amax / 448.0F;
      std::memcpy(KvRowScale(pages, row), &scale, sizeof(scale));
      for (int32_t i = 0; i < pages.width; ++i) codes[i] = FloatToE4M3(x[i] / scale);
      return;
    }
  }
}

// Every e4m3 code as a float: the host decoder's inner loop is a load.
struct E4M3Table {
  float value[256];
  constexpr E4M3Table() : value{} {
    for (int code = 0; code < 256; ++code) {
      const int exponent = (code >> 3) & 15;
      const int mantissa = code & 7;
      float magnitude = exponent == 0 ? static_cast<float>(mantissa) / 512.0F
                                      : (1.0F + static_cast<float>(mantissa) / 8.0F) / 64.0F;
      for (int e = 1; e < exponent; ++e) magnitude *= 2.0F;
      if ((code & 0x7f) == 0x7f) magnitude = std::numeric_limits<float>::quiet_NaN();
      value[code] = (code & 0x80) != 0 ? -magnitude : magnitude;
    }
  }
};
inline constexpr E4M3Table kE4M3Table;

// Row `row` as fp32: in place for kF32, else decoded into `buffer` [width].
inline const float* DecodeKvRow(const KvPages& pages, int64_t row, float* buffer) {
  const std::byte* data = KvRowData(pages, row);
  switch (pages.format) {
    case KvFormat::kF32: return reinterpret_cast<const float*>(data);
    case KvFormat::kBf16: {
      const uint16_t* in = reinterpret_cast<const uint16_t*>(data);
      for (int32_t i = 0; i < pages.width; ++i) buffer[i] = Bf16ToFloat(in[i]);
      return buffer;
    }
    case KvFormat::kFp8: {
      const uint8_t* codes = reinterpret_cast<const uint8_t*>(data);
      const uint8_t* scales = reinterpret_cast<const uint8_t*>(KvRowScale(pages, row));
      const int32_t nope = pages.width - pages.rope;
      for (int32_t b = 0; b < nope / kFp8Block; ++b) {
        const float scale = E8M0ToFloat(scales[b]);
        for (int32_t i = b * kFp8Block; i < (b + 1) * kFp8Block; ++i) {
          buffer[i] = kE4M3Table.value[codes[i]] * scale;
        }
      }
      const uint16_t* rope = reinterpret_cast<const uint16_t*>(codes + nope);
      for (int32_t i = 0; i < pages.rope; ++i) buffer[nope + i] = Bf16ToFloat(rope[i]);
      return buffer;
    }
    case KvFormat::kFp8Index: {
      const uint8_t* codes = reinterpret_cast<const uint8_t*>(data);
      float scale;
      std::memcpy(&scale, KvRowScale(pages, row), sizeof(scale));
      for (int32_t i = 0; i < pages.width; ++i) buffer[i] = kE4M3Table.value[codes[i]] * scale;
      return buffer;
    }
  }
  return buffer;
}

}  // namespace firesteel
