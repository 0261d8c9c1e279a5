#include "kernels/core/float_codec.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/support/reference_codec.h"
#include "tests/kernels/support/test_random.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

bool SameValue(float found, double wanted) {
  if (std::isnan(wanted)) return std::isnan(found);
  return static_cast<double>(found) == wanted && std::signbit(found) == std::signbit(wanted);
}

// bf16 by the definition: of the two neighbours the nearer one, on a tie the one with an even last
// bit.
uint16_t NearestBf16(float x) {
  const uint32_t bits = FloatBits(x);
  const uint16_t down = static_cast<uint16_t>(bits >> 16);
  const uint32_t rest = bits & 0xffffU;
  if (rest > 0x8000U || (rest == 0x8000U && (down & 1U) != 0)) {
    return static_cast<uint16_t>(down + 1);
  }
  return down;
}

TEST_CASE("every e4m3 code decodes to its defined value", "[core][float_codec]") {
  for (int code = 0; code < 256; ++code) {
    INFO("code " << code);
    CHECK(SameValue(E4M3ToFloat(static_cast<uint8_t>(code)),
                    ReferenceE4M3(static_cast<uint8_t>(code))));
  }
}

TEST_CASE("every e4m3 code survives decoding and encoding", "[core][float_codec]") {
  for (int code = 0; code < 256; ++code) {
    INFO("code " << code);
    CHECK(FloatToE4M3(E4M3ToFloat(static_cast<uint8_t>(code))) == code);
  }
}

TEST_CASE("e4m3 encoding rounds halfway values to the even code", "[core][float_codec]") {
  for (int code = 0; code < 0x7e; ++code) {
    const double low = ReferenceE4M3(static_cast<uint8_t>(code));
    const double high = ReferenceE4M3(static_cast<uint8_t>(code + 1));
    const float middle = static_cast<float>((low + high) / 2);
    const int even = code % 2 == 0 ? code : code + 1;
    INFO("between codes " << code << " and " << code + 1);
    CHECK(FloatToE4M3(middle) == even);
    CHECK(FloatToE4M3(-middle) == (even | 0x80));
    CHECK(FloatToE4M3(std::nextafter(middle, 0.0F)) == code);
    CHECK(FloatToE4M3(std::nextafter(middle, 1e9F)) == code + 1);
  }
}

TEST_CASE("e4m3 encoding equals a search for the nearest code", "[core][float_codec]") {
  TestRandom random(1);
  int wrong = 0;
  for (int i = 0; i < 60000; ++i) {
    // All exponents around the format's range, subnormals included, with random mantissas.
    const uint32_t exponent = 110 + static_cast<uint32_t>(random.Below(30));
    const uint32_t bits = static_cast<uint32_t>(random.Bits()) & 0x807fffffU;
    const float x = BitsFloat(bits | (exponent << 23));
    if (FloatToE4M3(x) != ReferenceToE4M3(x)) {
      ++wrong;
      UNSCOPED_INFO("x = " << x);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("e4m3 encoding saturates, keeps NaN and keeps the sign of zero", "[core][float_codec]") {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(FloatToE4M3(448.0F) == 0x7e);
  CHECK(FloatToE4M3(464.0F) == 0x7e);
  CHECK(FloatToE4M3(1e30F) == 0x7e);
  CHECK(FloatToE4M3(infinity) == 0x7e);
  CHECK(FloatToE4M3(-infinity) == 0xfe);
  CHECK((FloatToE4M3(std::nanf("")) & 0x7f) == 0x7f);
  CHECK(FloatToE4M3(0.0F) == 0x00);
  CHECK(FloatToE4M3(-0.0F) == 0x80);
  CHECK(FloatToE4M3(std::numeric_limits<float>::denorm_min()) == 0x00);
}

TEST_CASE("every e2m1 code decodes to its defined value", "[core][float_codec]") {
  for (int code = 0; code < 16; ++code) {
    INFO("code " << code);
    CHECK(SameValue(E2M1ToFloat(static_cast<uint8_t>(code)),
                    ReferenceE2M1(static_cast<uint8_t>(code))));
  }
}

TEST_CASE("every e8m0 code decodes to its power of two", "[core][float_codec]") {
  for (int code = 0; code < 256; ++code) {
    INFO("code " << code);
    CHECK(SameValue(E8M0ToFloat(static_cast<uint8_t>(code)),
                    ReferenceE8M0(static_cast<uint8_t>(code))));
  }
}

TEST_CASE("every bf16 code decodes to its defined value and encodes back", "[core][float_codec]") {
  int wrong = 0;
  for (int code = 0; code < 65536; ++code) {
    const uint16_t stored = static_cast<uint16_t>(code);
    const float value = Bf16ToFloat(stored);
    if (!SameValue(value, ReferenceBf16(stored))) ++wrong;
    const uint16_t back = FloatToBf16(value);
    if (std::isnan(value) ? !std::isnan(Bf16ToFloat(back)) : back != stored) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("bf16 encoding rounds ties to even and overflows to infinity", "[core][float_codec]") {
  CHECK(FloatToBf16(BitsFloat(0x3f808000U)) == 0x3f80);  // halfway, last bit even
  CHECK(FloatToBf16(BitsFloat(0x3f818000U)) == 0x3f82);  // halfway, last bit odd
  CHECK(FloatToBf16(BitsFloat(0x3f808001U)) == 0x3f81);
  CHECK(FloatToBf16(BitsFloat(0x3f807fffU)) == 0x3f80);
  CHECK(FloatToBf16(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(FloatToBf16(-std::numeric_limits<float>::infinity()) == 0xff80);
  TestRandom random(2);
  int wrong = 0;
  for (int i = 0; i < 100000; ++i) {
    const float x = BitsFloat(static_cast<uint32_t>(random.Bits()));
    if (!std::isnan(x) && FloatToBf16(x) != NearestBf16(x)) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("a NaN whose payload sits in the low bits stays NaN in bf16", "[core][float_codec]") {
  CHECK(std::isnan(Bf16ToFloat(FloatToBf16(BitsFloat(0x7f800001U)))));
  CHECK(std::isnan(Bf16ToFloat(FloatToBf16(BitsFloat(0xffffffffU)))));
}

TEST_CASE("the scale exponent is the smallest power of two that fits", "[core][float_codec]") {
  TestRandom random(3);
  std::vector<float> values = {
      1e-4F, 448.0F, std::nextafter(448.0F, 1e9F), std::nextafter(448.0F, 0.0F), 1.0F, 896.0F,
      3.5F,  1e30F};
  for (int i = 0; i < 20000; ++i) {
    values.push_back(std::ldexp(random.Uniform(1.0F, 2.0F), random.Below(120) - 60));
  }
  for (int e = -60; e < 60; ++e) {
    values.push_back(std::ldexp(448.0F, e));
    values.push_back(std::nextafter(std::ldexp(448.0F, e), 1e38F));
  }
  int wrong = 0;
  for (const float amax : values) {
    const int exponent = static_cast<int>(ScaleExponent(amax, 448.0F)) - 127;
    const double wide = static_cast<double>(amax);
    const bool fits = wide <= 448.0 * std::ldexp(1.0, exponent);
    const bool smallest = wide > 448.0 * std::ldexp(1.0, exponent - 1);
    if (!fits || !smallest) {
      ++wrong;
      UNSCOPED_INFO("amax = " << amax << " exponent " << exponent);
    }
  }
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace firesteel
