// Random weights in every checkpoint storage, with their values decoded in double precision from
// the format definitions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/core/float_codec.h"
#include "kernels/core/math.h"
#include "kernels/ops/linear/linear.h"
#include "tests/kernels/support/reference_codec.h"
#include "tests/kernels/support/test_random.h"

namespace firesteel {

// `weight` points into the vectors; moving keeps those addresses, so only copies are forbidden.
struct TestWeight {
  TestWeight() = default;
  TestWeight(TestWeight&&) = default;
  TestWeight& operator=(TestWeight&&) = default;
  TestWeight(const TestWeight&) = delete;
  TestWeight& operator=(const TestWeight&) = delete;

  double At(int64_t o, int64_t k) const { return value[static_cast<size_t>(o * weight.in + k)]; }

  std::vector<uint8_t> bytes;
  std::vector<uint8_t> scale;
  std::vector<double> value;  // [out, in]
  Weight weight;
};

inline TestWeight MakeWeight(TestRandom& random, DType dtype, int32_t out, int32_t in,
                             int32_t block = 0) {
  TestWeight w;
  w.value.resize(static_cast<size_t>(out) * static_cast<size_t>(in));
  const int64_t scale_cols = dtype == DType::kF8E4M3 ? CeilDiv(in, block) : in / 32;
  const int64_t scale_rows = dtype == DType::kF8E4M3 ? CeilDiv(out, block) : out;
  if (dtype == DType::kF8E4M3 || dtype == DType::kF4E2M1x2) {
    w.scale.resize(static_cast<size_t>(scale_rows * scale_cols));
    for (uint8_t& s : w.scale) s = static_cast<uint8_t>(118 + random.Below(8));
  }
  const size_t count = w.value.size();
  w.bytes.resize(dtype == DType::kF4E2M1x2 ? count / 2
                                           : count * static_cast<size_t>(DTypeBytes(dtype)));
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t k = 0; k < in; ++k) {
      const size_t i = static_cast<size_t>(o * in + k);
      if (dtype == DType::kF32) {
        const float v = random.Uniform(-1.0F, 1.0F);
        std::memcpy(&w.bytes[i * 4], &v, 4);
        w.value[i] = static_cast<double>(v);
      } else if (dtype == DType::kBf16) {
        const uint16_t v = FloatToBf16(random.Uniform(-1.0F, 1.0F));
        std::memcpy(&w.bytes[i * 2], &v, 2);
        w.value[i] = ReferenceBf16(v);
      } else if (dtype == DType::kF8E4M3) {
        uint8_t code = static_cast<uint8_t>(random.Below(256));
        if ((code & 0x7fU) == 0x7fU) code = 0x05;  // no NaN in weights; a subnormal instead
        w.bytes[i] = code;
        const size_t tile = static_cast<size_t>(o / block * scale_cols + k / block);
        w.value[i] = ReferenceE4M3(code) * ReferenceE8M0(w.scale[tile]);
      } else {
        const uint8_t nibble = static_cast<uint8_t>(random.Below(16));
        w.bytes[i / 2] = static_cast<uint8_t>(w.bytes[i / 2] | (i % 2 == 0 ? nibble : nibble << 4));
        const size_t tile = static_cast<size_t>(o * scale_cols + k / 32);
        w.value[i] = ReferenceE2M1(nibble) * ReferenceE8M0(w.scale[tile]);
      }
    }
  }
  w.weight =
      Weight{w.bytes.data(), w.scale.empty() ? nullptr : w.scale.data(), dtype, out, in, block};
  return w;
}

}  // namespace firesteel
