// Storage types of tensors and caches.
#pragma once

#include <cstdint>

namespace firesteel {

enum class DType : uint8_t {
  kF32,
  kBf16,
  kF8E4M3,    // OCP e4m3fn: 1-4-3, no infinities, 0x7f and 0xff are NaN, largest 448
  kF8E8M0,    // 2^(byte - 127), 255 is NaN; scales only
  kF4E2M1x2,  // two e2m1 values a byte, low nibble is the even column (safetensors calls it I8)
  kI32,
  kI64,
};

constexpr const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kBf16: return "BF16";
    case DType::kF8E4M3: return "F8_E4M3";
    case DType::kF8E8M0: return "F8_E8M0";
    case DType::kF4E2M1x2: return "I8";
    case DType::kI32: return "I32";
    case DType::kI64: return "I64";
  }
  return "unknown";
}

// Bytes of one stored element (of one pair for kF4E2M1x2).
constexpr int32_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF32: return 4;
    case DType::kBf16: return 2;
    case DType::kF8E4M3: return 1;
    case DType::kF8E8M0: return 1;
    case DType::kF4E2M1x2: return 1;
    case DType::kI32: return 4;
    case DType::kI64: return 8;
  }
  return 0;
}

}  // namespace firesteel
