#include "kernels/ops/linear/linear.h"

#include <cmath>
#include <vector>

#include "tests/kernels/support/linear_shapes.h"
#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/kernels/support/test_weight.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kMaxRows = 40;

// Unused columns behind a row: whether rows start at multiples of 16 bytes decides what a back end may do with them.
constexpr int32_t kOddGap = 5;
constexpr int32_t kAlignedGap = 8;

RowMatrix RunLinear(OpFixture& ops, RowMatrix& x, const Weight& weight, int32_t live,
                    int32_t groups, DType out_dtype) {
  RowMatrix y(kMaxRows, weight.out, out_dtype);
  ops.device().kernels().linear(ops.stream(),
                                LinearArgs{x.rows(), y.rows(), weight, &live, kMaxRows, groups});
  return y;
}

// y[r][o] in double precision and the sum of magnitudes that scales its rounding error.
void Oracle(const RowMatrix& x, const TestWeight& w, int32_t row, int32_t o, int32_t groups,
            double* value, double* magnitude) {
  const int32_t first = o / (w.weight.out / groups) * w.weight.in;
  *value = *magnitude = 0.0;
  for (int32_t k = 0; k < w.weight.in; ++k) {
    const double term = static_cast<double>(x.Get(row, first + k)) * w.At(o, k);
    *value += term;
    *magnitude += std::fabs(term);
  }
}

int CountWrong(const RowMatrix& x, const TestWeight& w, const RowMatrix& y, int32_t rows,
               int32_t groups, double relative) {
  int wrong = 0;
  for (int32_t r = 0; r < rows; ++r) {
    for (int32_t o = 0; o < w.weight.out; ++o) {
      double value;
      double magnitude;
      Oracle(x, w, r, o, groups, &value, &magnitude);
      if (!(std::fabs(static_cast<double>(y.Get(r, o)) - value) <= relative * magnitude + 1e-30)) {
        if (wrong++ == 0) UNSCOPED_INFO("row " << r << " output " << o);
      }
    }
  }
  return wrong;
}

TEST_CASE("linear equals a double-precision product in every weight format", "[ops][linear]") {
  OpFixture ops(3);
  TestRandom random(10);
  const int32_t gap = GENERATE(kOddGap, kAlignedGap);
  for (const LinearShape& s : LinearShapes()) {
    const TestWeight w = MakeWeight(random, s.dtype, s.out, s.in, s.block);
    RowMatrix x(kMaxRows, s.in, DType::kF32, gap);
    x.Randomize(random, 23);
    const RowMatrix y = RunLinear(ops, x, w.weight, 23, 1, DType::kF32);
    INFO(DTypeName(s.dtype) << " out " << s.out << " in " << s.in << " block " << s.block);
    CHECK(CountWrong(x, w, y, 23, 1, 1e-6) == 0);
    CHECK(y.PoisonIntactFrom(23));
  }
}

TEST_CASE("a row's product has the same bits for every row count", "[ops][linear]") {
  OpFixture ops(3);
  TestRandom random(11);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  const int32_t gap = GENERATE(kOddGap, kAlignedGap);
  for (const LinearShape& s : LinearShapes()) {
    const TestWeight w = MakeWeight(random, s.dtype, s.out, s.in, s.block);
    RowMatrix x(kMaxRows, s.in, dtype, gap);
    x.Randomize(random, kMaxRows);
    const RowMatrix all = RunLinear(ops, x, w.weight, kMaxRows, 1, dtype);
    for (int32_t live = 1; live < kMaxRows; ++live) {
      const RowMatrix y = RunLinear(ops, x, w.weight, live, 1, dtype);
      int different = 0;
      for (int32_t r = 0; r < live; ++r) different += y.RowBits(r) == all.RowBits(r) ? 0 : 1;
      INFO(DTypeName(s.dtype) << " out " << s.out << " in " << s.in << " rows " << live);
      CHECK(different == 0);
      CHECK(y.PoisonIntactFrom(live));
    }
  }
}

TEST_CASE("a row's product does not depend on its neighbours or its place", "[ops][linear]") {
  OpFixture ops(2);
  TestRandom random(12);
  for (const LinearShape& s : LinearShapes()) {
    const TestWeight w = MakeWeight(random, s.dtype, s.out, s.in, s.block);
    RowMatrix x(kMaxRows, s.in);
    x.Randomize(random, 1);
    const RowMatrix alone = RunLinear(ops, x, w.weight, 1, 1, DType::kF32);
    for (const int32_t rows : {5, 14}) {
      RowMatrix crowd(kMaxRows, s.in);
      crowd.Randomize(random, rows, -100.0F, 100.0F);
      crowd.CopyRow(rows - 2, x, 0);
      const RowMatrix y = RunLinear(ops, crowd, w.weight, rows, 1, DType::kF32);
      INFO(DTypeName(s.dtype) << " out " << s.out << " in " << s.in << " rows " << rows);
      CHECK(y.RowBits(rows - 2) == alone.RowBits(0));
    }
  }
}

TEST_CASE("linear gives the same bits for any number of workers", "[ops][linear]") {
  TestRandom random(13);
  const TestWeight w = MakeWeight(random, DType::kF8E4M3, 200, 256, 128);
  RowMatrix x(kMaxRows, 256);
  x.Randomize(random, kMaxRows);
  OpFixture one(1);
  const RowMatrix wanted = RunLinear(one, x, w.weight, kMaxRows, 1, DType::kF32);
  for (const int threads : {2, 3, 4}) {
    OpFixture many(threads);
    const RowMatrix y = RunLinear(many, x, w.weight, kMaxRows, 1, DType::kF32);
    for (int32_t r = 0; r < kMaxRows; ++r) REQUIRE(y.RowBits(r) == wanted.RowBits(r));
  }
}

TEST_CASE("the block-diagonal form multiplies each group by its own columns", "[ops][linear]") {
  OpFixture ops(3);
  TestRandom random(15);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  const int32_t gap = GENERATE(kOddGap, kAlignedGap);
  const std::vector<LinearShape> shapes = {{DType::kF32, 15, 7, 0},
                                           {DType::kBf16, 12, 33, 0},
                                           {DType::kF8E4M3, 192, 64, 32},
                                           {DType::kF8E4M3, 390, 128, 128},
                                           {DType::kF4E2M1x2, 9, 64, 0}};
  for (const LinearShape& s : shapes) {
    const TestWeight w = MakeWeight(random, s.dtype, s.out, s.in, s.block);
    RowMatrix x(kMaxRows, 3 * s.in, dtype, gap);
    x.Randomize(random, 17);
    for (const int32_t live : {2, 17}) {
      const RowMatrix y = RunLinear(ops, x, w.weight, live, 3, DType::kF32);
      INFO(DTypeName(s.dtype) << " out " << s.out << " in " << s.in << " rows " << live);
      CHECK(CountWrong(x, w, y, live, 3, 1e-6) == 0);
      CHECK(y.PoisonIntactFrom(live));
    }
  }
}

TEST_CASE("bf16 activations are widened on entry and rounded once on exit", "[ops][linear]") {
  OpFixture ops(3);
  TestRandom random(16);
  const int32_t gap = GENERATE(kOddGap, kAlignedGap);
  for (const LinearShape& s : LinearShapes()) {
    const TestWeight w = MakeWeight(random, s.dtype, s.out, s.in, s.block);
    RowMatrix x(kMaxRows, s.in, DType::kBf16, gap);
    x.Randomize(random, 15);
    RowMatrix wide(kMaxRows, s.in, DType::kF32, gap);
    for (int32_t r = 0; r < 15; ++r) wide.CopyRow(r, x, r);
    for (const int32_t live : {1, 4, 15}) {
      const RowMatrix exact = RunLinear(ops, wide, w.weight, live, 1, DType::kF32);
      const RowMatrix y = RunLinear(ops, x, w.weight, live, 1, DType::kBf16);
      int wrong = 0;
      for (int32_t r = 0; r < live; ++r) {
        for (int32_t o = 0; o < s.out; ++o)
          wrong += y.Get(r, o) == RoundToBf16(exact.Get(r, o)) ? 0 : 1;
      }
      INFO(DTypeName(s.dtype) << " out " << s.out << " in " << s.in << " rows " << live);
      CHECK(wrong == 0);
      CHECK(y.PoisonIntactFrom(live));
    }
  }
}

TEST_CASE("a product without live rows writes nothing", "[ops][linear]") {
  OpFixture ops(2);
  TestRandom random(17);
  const TestWeight w = MakeWeight(random, DType::kBf16, 150, 224, 0);
  RowMatrix x(kMaxRows, 224);
  CHECK(RunLinear(ops, x, w.weight, 0, 1, DType::kF32).PoisonIntactFrom(0));
}

TEST_CASE("an fp8 NaN code reaches the output it belongs to and no other", "[ops][linear]") {
  OpFixture ops(1);
  TestRandom random(18);
  TestWeight w = MakeWeight(random, DType::kF8E4M3, 9, 64, 32);
  w.bytes[3 * 64 + 17] = 0xff;
  RowMatrix x(kMaxRows, 64);
  x.Randomize(random, 14);
  for (const int32_t live : {2, 14}) {
    const RowMatrix y = RunLinear(ops, x, w.weight, live, 1, DType::kF32);
    for (int32_t o = 0; o < 9; ++o) CHECK(std::isnan(y.Get(1, o)) == (o == 3));
  }
}

}  // namespace
}  // namespace firesteel
