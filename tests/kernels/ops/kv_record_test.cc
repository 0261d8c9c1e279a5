#include "kernels/ops/kv_record.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/kernels/support/kv_pool.h"
#include "tests/kernels/support/reference_codec.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kEntries = 4;
constexpr int64_t kRow = 6;  // entry 2 of page 1

size_t N(int64_t i) { return static_cast<size_t>(i); }

// What a pool holds after one write: every other byte as it was.
std::vector<std::byte> Blank(const KvPool& pool) {
  return std::vector<std::byte>(pool.bytes().size(), std::byte{0xff});
}

void PutBytes(std::vector<std::byte>& to, int64_t at, const void* from, size_t count) {
  std::memcpy(to.data() + at, from, count);
}

TEST_CASE("row and page sizes are those of the published records", "[ops][kv_record]") {
  CHECK(KvDataBytes(KvFormat::kFp8, 512, 64) == 576);
  CHECK(KvScaleBytes(KvFormat::kFp8, 512, 64) == 8);
  CHECK(KvPageBytes(KvFormat::kFp8, 512, 64, 64) == 64 * 584);
  CHECK(KvDataBytes(KvFormat::kFp8Index, 128, 64) == 128);
  CHECK(KvScaleBytes(KvFormat::kFp8Index, 128, 64) == 4);
  CHECK(KvPageBytes(KvFormat::kFp8Index, 128, 64, 64) == 64 * 132);
  CHECK(KvPageBytes(KvFormat::kBf16, 512, 64, 2) == 2048);
  CHECK(KvPageBytes(KvFormat::kF32, 16, 4, 3) == 192);
  CHECK(KvPageBytes(KvFormat::kFp8, 512, 64, 4) == 2368);  // 2336 rounded up to 64
}

TEST_CASE("the host decoder's table holds the value of every e4m3 code", "[ops][kv_record]") {
  for (int code = 0; code < 256; ++code) {
    const double wanted = ReferenceE4M3(static_cast<uint8_t>(code));
    const float found = kE4M3Table.value[code];
    INFO("code " << code);
    if (std::isnan(wanted)) {
      CHECK(std::isnan(found));
    } else {
      CHECK(static_cast<double>(found) == wanted);
      CHECK(std::signbit(found) == std::signbit(wanted));
    }
  }
}

TEST_CASE("an fp8 record puts codes, rope and scales at their exact bytes", "[ops][kv_record]") {
  TestRandom random(80);
  KvPool pool(KvFormat::kFp8, 512, 64, kEntries, 3);
  std::vector<float> x = RandomFloats(random, 512, -3.0F, 3.0F);
  for (int32_t i = 64; i < 128; ++i) x[N(i)] *= 1000.0F;  // blocks of very different ranges
  for (int32_t i = 128; i < 192; ++i) x[N(i)] = 0.0F;
  for (int32_t i = 192; i < 256; ++i) x[N(i)] *= 1e-9F;  // below the floor of 1e-4
  pool.Write(kRow, x);
  std::vector<std::byte> wanted = Blank(pool);
  const int64_t page = 2368;
  const int64_t data = page + 2 * 576;
  const int64_t scales = page + kEntries * 576 + 2 * 8;
  for (int32_t b = 0; b < 7; ++b) {
    double amax = 1e-4;
    for (int32_t i = b * 64; i < (b + 1) * 64; ++i) {
      amax = std::max(amax, std::fabs(static_cast<double>(x[N(i)])));
    }
    int exponent = -100;
    while (amax > 448.0 * std::ldexp(1.0, exponent)) ++exponent;
    const uint8_t scale = static_cast<uint8_t>(exponent + 127);
    PutBytes(wanted, scales + b, &scale, 1);
    for (int32_t i = b * 64; i < (b + 1) * 64; ++i) {
      const uint8_t code = ReferenceToE4M3(std::ldexp(x[N(i)], -exponent));
      PutBytes(wanted, data + i, &code, 1);
    }
  }
  for (int32_t i = 0; i < 64; ++i) {
    const uint16_t stored = FloatToBf16(x[N(448 + i)]);
    PutBytes(wanted, data + 448 + 2 * i, &stored, 2);
  }
  CHECK(pool.bytes() == wanted);
  const std::vector<float> back = pool.Read(kRow);
  for (int32_t i = 0; i < 448; ++i) {
    const uint8_t code = static_cast<uint8_t>(wanted[N(data + i)]);
    const uint8_t scale = static_cast<uint8_t>(wanted[N(scales + i / 64)]);
    REQUIRE(static_cast<double>(back[N(i)]) == ReferenceE4M3(code) * ReferenceE8M0(scale));
  }
  for (int32_t i = 448; i < 512; ++i) REQUIRE(back[N(i)] == RoundToBf16(x[N(i)]));
}

TEST_CASE("an index record appends one fp32 scale per entry after all codes", "[ops][kv_record]") {
  TestRandom random(81);
  KvPool pool(KvFormat::kFp8Index, 128, 64, kEntries, 3);
  const std::vector<float> x = RandomFloats(random, 128, -5.0F, 5.0F);
  pool.Write(kRow, x);
  std::vector<std::byte> wanted = Blank(pool);
  float amax = 0.0F;
  for (const float v : x) amax = std::max(amax, std::fabs(v));
  const float scale = amax / 448.0F;
  const int64_t page = RoundUp<int64_t>(kEntries * 132, 64);
  PutBytes(wanted, page + kEntries * 128 + 2 * 4, &scale, 4);
  for (int32_t i = 0; i < 128; ++i) {
    const uint8_t code = ReferenceToE4M3(x[N(i)] / scale);
    PutBytes(wanted, page + 2 * 128 + i, &code, 1);
  }
  CHECK(pool.bytes() == wanted);
  const std::vector<float> back = pool.Read(kRow);
  for (int32_t i = 0; i < 128; ++i) {
    const uint8_t code = static_cast<uint8_t>(wanted[N(page + 2 * 128 + i)]);
    REQUIRE(back[N(i)] == static_cast<float>(ReferenceE4M3(code)) * scale);
  }
}

TEST_CASE("plain records store the values themselves", "[ops][kv_record]") {
  TestRandom random(82);
  const KvFormat format = GENERATE(KvFormat::kF32, KvFormat::kBf16);
  KvPool pool(format, 20, 8, kEntries, 3);
  const std::vector<float> x = RandomFloats(random, 20, -5.0F, 5.0F);
  pool.Write(kRow, x);
  std::vector<std::byte> wanted = Blank(pool);
  const int64_t bytes = format == KvFormat::kF32 ? 4 : 2;
  const int64_t at = RoundUp<int64_t>(kEntries * 20 * bytes, 64) + 2 * 20 * bytes;
  for (int32_t i = 0; i < 20; ++i) {
    const uint16_t narrow = FloatToBf16(x[N(i)]);
    if (format == KvFormat::kF32) {
      PutBytes(wanted, at + 4 * i, &x[N(i)], 4);
    } else {
      PutBytes(wanted, at + 2 * i, &narrow, 2);
    }
  }
  CHECK(pool.bytes() == wanted);
  const std::vector<float> back = pool.Read(kRow);
  for (int32_t i = 0; i < 20; ++i) {
    CHECK(back[N(i)] == (format == KvFormat::kF32 ? x[N(i)] : RoundToBf16(x[N(i)])));
  }
}

TEST_CASE("rows of a pool never share a byte", "[ops][kv_record]") {
  const KvFormat format =
      GENERATE(KvFormat::kF32, KvFormat::kBf16, KvFormat::kFp8, KvFormat::kFp8Index);
  KvPool pool(format, 192, 64, 3, 4);
  std::vector<std::vector<float>> rows;
  TestRandom random(83);
  for (int64_t r = 0; r < 12; ++r) {
    rows.push_back(RandomFloats(random, 192, -2.0F, 2.0F));
    pool.Write(r, rows.back());
  }
  for (int64_t r = 0; r < 12; ++r) {
    KvPool single(format, 192, 64, 3, 4);
    single.Write(r, rows[N(r)]);
    CHECK(pool.Read(r) == single.Read(r));
  }
}

}  // namespace
}  // namespace firesteel
