#include "kernels/ops/kv_write/kv_write.h"

#include <cmath>
#include <vector>

#include "tests/kernels/support/kv_pool.h"
#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/rope_fixture.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kRows = 40;
constexpr int32_t kLive = 35;
constexpr int32_t kWidth = 192;
constexpr int32_t kRope = 64;

size_t N(int64_t i) { return static_cast<size_t>(i); }

struct Inputs {
  explicit Inputs(DType dtype)
      : random(90),
        rope(100, kRope),
        kv(kRows, kWidth, dtype),
        weight(RandomBf16(random, kWidth, 0.5F, 2.0F)),
        position(kRows, 1 << 28),
        cache_row(kRows, 1 << 28) {
    kv.Randomize(random, kLive);
    for (int32_t r = 0; r < kLive; ++r) {
      position[N(r)] = random.Below(100);
      // 37 entries, a permutation with holes; every fifth row writes nothing.
      cache_row[N(r)] = r % 5 == 3 ? -1 : (r * 7) % 37;
    }
  }
  void Run(OpFixture& ops, const KvPool& pool) {
    const int32_t live = kLive;
    ops.device().kernels().kv_write(
        ops.stream(), KvWriteArgs{kv.rows(), weight.data(), position.data(), cache_row.data(),
                                  rope.table(), pool.pages(), &live, kRows, 1e-6F});
  }
  TestRandom random;
  RopeFixture rope;
  RowMatrix kv;
  std::vector<uint16_t> weight;
  std::vector<int32_t> position, cache_row;
};

TEST_CASE("a cache row is the normed and rotated projection", "[ops][kv_write]") {
  OpFixture ops(3);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  Inputs in(dtype);
  KvPool pool(KvFormat::kF32, kWidth, kRope, 8, 5);
  in.Run(ops, pool);
  int wrong = 0;
  for (int32_t r = 0; r < kLive; ++r) {
    if (in.cache_row[N(r)] < 0) continue;
    std::vector<double> wanted;
    double squares = 0.0;
    for (int32_t c = 0; c < kWidth; ++c) {
      const double x = static_cast<double>(in.kv.Get(r, c));
      squares += x * x;
      wanted.push_back(x * static_cast<double>(Bf16ToFloat(in.weight[N(c)])));
    }
    for (double& v : wanted) v /= std::sqrt(squares / kWidth + 1e-6);
    in.rope.Rotate(wanted, in.position[N(r)]);
    const std::vector<float> found = pool.Read(in.cache_row[N(r)]);
    for (int32_t c = 0; c < kWidth; ++c) {
      wrong += std::fabs(static_cast<double>(found[N(c)]) - wanted[N(c)]) < 1e-5 ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("every record format stores the same row through its codec", "[ops][kv_write]") {
  OpFixture ops(3);
  const KvFormat format = GENERATE(KvFormat::kBf16, KvFormat::kFp8, KvFormat::kFp8Index);
  Inputs in(DType::kF32);
  KvPool plain(KvFormat::kF32, kWidth, kRope, 8, 5);
  KvPool pool(format, kWidth, kRope, 8, 5);
  KvPool wanted(format, kWidth, kRope, 8, 5);
  in.Run(ops, plain);
  in.Run(ops, pool);
  for (int32_t r = 0; r < kLive; ++r) {
    const int32_t row = in.cache_row[N(r)];
    if (row >= 0) wanted.Write(row, plain.Read(row));
  }
  CHECK(pool.bytes() == wanted.bytes());
}

TEST_CASE("a row without a cache row writes nothing at all", "[ops][kv_write]") {
  OpFixture ops(2);
  Inputs in(DType::kF32);
  for (int32_t r = 0; r < kLive; ++r) in.cache_row[N(r)] = -1;
  KvPool pool(KvFormat::kFp8, kWidth, kRope, 8, 5);
  const std::vector<std::byte> before = pool.bytes();
  in.Run(ops, pool);
  CHECK(pool.bytes() == before);
}

TEST_CASE("cache rows that no live row names keep their bytes", "[ops][kv_write]") {
  OpFixture ops(2);
  Inputs in(DType::kF32);
  KvPool pool(KvFormat::kF32, kWidth, kRope, 8, 5);
  in.Run(ops, pool);
  std::vector<bool> written(40, false);
  for (int32_t r = 0; r < kLive; ++r) {
    if (in.cache_row[N(r)] >= 0) written[N(in.cache_row[N(r)])] = true;
  }
  for (int32_t row = 0; row < 40; ++row) {
    const std::vector<float> values = pool.Read(row);
    for (const float v : values) REQUIRE((FloatBits(v) == 0xffffffffU) != written[N(row)]);
  }
}

}  // namespace
}  // namespace firesteel
