// Small integer helpers used on host and device.
#pragma once

#include <cstdint>

#include "kernels/core/check.h"

#if defined(__CUDACC__)
#define FIRESTEEL_HOST_DEVICE __host__ __device__
#else
#define FIRESTEEL_HOST_DEVICE
#endif

namespace firesteel {

template <typename T>
FIRESTEEL_HOST_DEVICE constexpr T CeilDiv(T a, T b) {
  return (a + b - 1) / b;
}

template <typename T>
FIRESTEEL_HOST_DEVICE constexpr T RoundUp(T a, T multiple) {
  return CeilDiv(a, multiple) * multiple;
}

template <typename T>
FIRESTEEL_HOST_DEVICE constexpr T Min(T a, T b) {
  return a < b ? a : b;
}

template <typename T>
FIRESTEEL_HOST_DEVICE constexpr T Max(T a, T b) {
  return a < b ? b : a;
}

// Narrowing that aborts instead of truncating.
template <typename To, typename From>
To CheckedCast(From value) {
  const To narrowed = static_cast<To>(value);
  FIRESTEEL_CHECK(static_cast<From>(narrowed) == value && (narrowed < To{}) == (value < From{}),
                  "integer does not fit: " + std::to_string(value));
  return narrowed;
}

}  // namespace firesteel
