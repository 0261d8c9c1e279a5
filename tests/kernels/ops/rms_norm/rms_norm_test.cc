#include "kernels/ops/rms_norm/rms_norm.h"

#include <cmath>

#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kRows = 37;

TEST_CASE("rms_norm equals a double-precision norm for all storage types", "[ops][rms_norm]") {
  OpFixture ops(3);
  TestRandom random(20);
  const DType in = GENERATE(DType::kF32, DType::kBf16);
  const DType out = GENERATE(DType::kF32, DType::kBf16);
  for (const int32_t cols : {1, 5, 16, 31, 64, 129, 512}) {
    const std::vector<uint16_t> weight = RandomBf16(random, cols, 0.5F, 2.0F);
    RowMatrix x(kRows, cols, in);
    RowMatrix y(kRows, cols, out);
    const int32_t live = 33;
    x.Randomize(random, live, -3.0F, 3.0F);
    ops.device().kernels().rms_norm(
        ops.stream(), RmsNormArgs{x.rows(), y.rows(), weight.data(), &live, kRows, cols, 1e-6F});
    int wrong = 0;
    for (int32_t r = 0; r < live; ++r) {
      double squares = 0.0;
      for (int32_t c = 0; c < cols; ++c) {
        squares += static_cast<double>(x.Get(r, c)) * static_cast<double>(x.Get(r, c));
      }
      const double scale = 1.0 / std::sqrt(squares / cols + 1e-6);
      for (int32_t c = 0; c < cols; ++c) {
        const double wanted = static_cast<double>(x.Get(r, c)) * scale *
                              static_cast<double>(Bf16ToFloat(weight[static_cast<size_t>(c)]));
        const double tolerance = out == DType::kF32 ? 2e-6 : 0x1p-8;
        if (!(std::fabs(static_cast<double>(y.Get(r, c)) - wanted) <=
              tolerance * std::fabs(wanted) + 1e-9)) {
          ++wrong;
        }
      }
    }
    INFO("cols " << cols);
    CHECK(wrong == 0);
    CHECK(y.PoisonIntactFrom(live));
  }
}

TEST_CASE("rms_norm may write over its input", "[ops][rms_norm]") {
  OpFixture ops(2);
  TestRandom random(21);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  const std::vector<uint16_t> weight = RandomBf16(random, 48, 0.5F, 2.0F);
  RowMatrix x(kRows, 48, dtype);
  RowMatrix y(kRows, 48, dtype);
  const int32_t live = 20;
  x.Randomize(random, live);
  ops.device().kernels().rms_norm(
      ops.stream(), RmsNormArgs{x.rows(), y.rows(), weight.data(), &live, kRows, 48, 1e-6F});
  ops.device().kernels().rms_norm(
      ops.stream(), RmsNormArgs{x.rows(), x.rows(), weight.data(), &live, kRows, 48, 1e-6F});
  for (int32_t r = 0; r < live; ++r) CHECK(x.RowBits(r) == y.RowBits(r));
  CHECK(x.PoisonIntactFrom(live));
}

TEST_CASE("rms_norm of a zero row is zero and a row ignores its neighbours", "[ops][rms_norm]") {
  OpFixture ops(2);
  TestRandom random(22);
  const std::vector<uint16_t> weight = RandomBf16(random, 33, 0.5F, 2.0F);
  RowMatrix x(kRows, 33);
  RowMatrix y(kRows, 33);
  RowMatrix alone(1, 33);
  const int32_t live = kRows;
  const int32_t one = 1;
  x.Randomize(random, live);
  for (int32_t c = 0; c < 33; ++c) x.Set(4, c, 0.0F);
  RowMatrix single(1, 33);
  single.CopyRow(0, x, 30);
  ops.device().kernels().rms_norm(
      ops.stream(), RmsNormArgs{x.rows(), y.rows(), weight.data(), &live, kRows, 33, 1e-6F});
  ops.device().kernels().rms_norm(
      ops.stream(), RmsNormArgs{single.rows(), alone.rows(), weight.data(), &one, 1, 33, 1e-6F});
  for (int32_t c = 0; c < 33; ++c) CHECK(y.Get(4, c) == 0.0F);
  CHECK(y.RowBits(30) == alone.RowBits(0));
}

}  // namespace
}  // namespace firesteel
