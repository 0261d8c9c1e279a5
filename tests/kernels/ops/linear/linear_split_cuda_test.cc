// The CUDA column's kernels for bf16 rows and weights of a model's shapes, whose tiles depend on the numbers of outputs and rows.
#include <cmath>
#include <string>
#include <vector>

#include "kernels/ops/linear/linear.h"
#include "tests/kernels/support/linear_shapes.h"
#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/kernels/support/test_weight.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kRows = 200;
constexpr int32_t kAlignedGap = 8;  // rows start at whole vectors

struct SplitShape {
  LinearShape weight;
  int32_t groups;
};

// Blocks of 32, 64 and 128 outputs, one to eight parts of the columns, runs of one and of several steps, and outputs that keep whole rows for few rows of x.
const std::vector<SplitShape>& SplitShapes() {
  static const std::vector<SplitShape> kShapes = {
      {{DType::kF8E4M3, 64, 512, 128}, 1},    {{DType::kBf16, 32, 1024, 0}, 1},
      {{DType::kF8E4M3, 192, 2048, 128}, 3},  {{DType::kBf16, 96, 4096, 0}, 1},
      {{DType::kF8E4M3, 1024, 4096, 128}, 1}, {{DType::kF8E4M3, 2048, 4096, 128}, 2},
      {{DType::kBf16, 16448, 512, 0}, 1},     {{DType::kF8E4M3, 128, 12288, 128}, 1},
      {{DType::kBf16, 64, 8192, 0}, 1},
  };
  return kShapes;
}

std::string Name(const SplitShape& s) {
  return std::string(DTypeName(s.weight.dtype)) + " out " + std::to_string(s.weight.out) + " in " +
         std::to_string(s.weight.in) + " groups " + std::to_string(s.groups);
}

// `live` of `padded` rows.
RowMatrix RunLinear(OpFixture& ops, RowMatrix& x, const Weight& weight, int32_t live,
                    int32_t padded, int32_t groups, DType out_dtype) {
  RowMatrix y(kRows, weight.out, out_dtype);
  ops.device().kernels().linear(ops.stream(),
                                LinearArgs{x.rows(), y.rows(), weight, &live, padded, groups});
  return y;
}

TEST_CASE("split products equal a double-precision product", "[ops][linear]") {
  OpFixture ops;
  TestRandom random(210);
  for (const SplitShape& s : SplitShapes()) {
    const TestWeight w =
        MakeWeight(random, s.weight.dtype, s.weight.out, s.weight.in, s.weight.block);
    RowMatrix x(kRows, s.weight.in * s.groups, DType::kBf16, kAlignedGap);
    x.Randomize(random, 59);
    const RowMatrix y = RunLinear(ops, x, w.weight, 59, kRows, s.groups, DType::kF32);
    int wrong = 0;
    for (int32_t r = 0; r < 59; ++r) {
      for (int32_t o = r % 7; o < s.weight.out; o += 1 + s.weight.out / 29) {
        const int32_t first = o / (s.weight.out / s.groups) * s.weight.in;
        double value = 0.0;
        double magnitude = 0.0;
        for (int32_t k = 0; k < s.weight.in; ++k) {
          const double term = static_cast<double>(x.Get(r, first + k)) * w.At(o, k);
          value += term;
          magnitude += std::fabs(term);
        }
        if (!(std::fabs(static_cast<double>(y.Get(r, o)) - value) <= 1e-6 * magnitude)) ++wrong;
      }
    }
    INFO(Name(s));
    CHECK(wrong == 0);
    CHECK(y.PoisonIntactFrom(59));
  }
}

TEST_CASE("a split product has the same bits for every number of rows", "[ops][linear]") {
  OpFixture ops;
  TestRandom random(211);
  for (const SplitShape& s : SplitShapes()) {
    const TestWeight w =
        MakeWeight(random, s.weight.dtype, s.weight.out, s.weight.in, s.weight.block);
    RowMatrix x(kRows, s.weight.in * s.groups, DType::kBf16, kAlignedGap);
    x.Randomize(random, kRows);
    const RowMatrix all = RunLinear(ops, x, w.weight, kRows, kRows, s.groups, DType::kF32);
    // Every count where a run is cheap, else those around the borders of tiles.
    const bool every = s.weight.out <= 96;
    for (int32_t live = 1; live < kRows; live += every || live % 48 < 2 || live < 10 ? 1 : 5) {
      const RowMatrix y = RunLinear(ops, x, w.weight, live, live, s.groups, DType::kF32);
      int different = 0;
      for (int32_t r = 0; r < live; ++r) different += y.RowBits(r) == all.RowBits(r) ? 0 : 1;
      INFO(Name(s) << " rows " << live);
      CHECK(different == 0);
      CHECK(y.PoisonIntactFrom(live));
    }
  }
}

TEST_CASE("rows in bf16 and the same rows in fp32 have one split product", "[ops][linear]") {
  OpFixture ops;
  TestRandom random(212);
  for (const SplitShape& s : SplitShapes()) {
    const TestWeight w =
        MakeWeight(random, s.weight.dtype, s.weight.out, s.weight.in, s.weight.block);
    RowMatrix x(kRows, s.weight.in * s.groups, DType::kBf16, kAlignedGap);
    x.Randomize(random, 50);
    RowMatrix wide(kRows, s.weight.in * s.groups, DType::kF32, kAlignedGap);
    for (int32_t r = 0; r < 50; ++r) wide.CopyRow(r, x, r);
    for (const int32_t live : {1, 50}) {
      const RowMatrix exact = RunLinear(ops, wide, w.weight, live, live, s.groups, DType::kF32);
      const RowMatrix y = RunLinear(ops, x, w.weight, live, live, s.groups, DType::kBf16);
      int wrong = 0;
      for (int32_t r = 0; r < live; ++r) {
        for (int32_t o = 0; o < s.weight.out; ++o) {
          wrong += y.Get(r, o) == RoundToBf16(exact.Get(r, o)) ? 0 : 1;
        }
      }
      INFO(Name(s) << " rows " << live);
      CHECK(wrong == 0);
    }
  }
}

}  // namespace
}  // namespace firesteel
