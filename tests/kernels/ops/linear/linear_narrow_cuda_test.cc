// The CUDA column's kernel for fp32 products of few outputs and many columns.
#include <string>
#include <vector>

#include "kernels/ops/linear/linear.h"
#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/kernels/support/test_weight.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kRows = 61;
constexpr int32_t kAlignedGap = 4;  // rows start at whole vectors
constexpr int32_t kWideOutputs = 144;

RowMatrix RunLinear(OpFixture& ops, RowMatrix& x, const Weight& weight, int32_t live,
                    int32_t padded) {
  RowMatrix y(kRows, weight.out, DType::kF32);
  ops.device().kernels().linear(ops.stream(),
                                LinearArgs{x.rows(), y.rows(), weight, &live, padded, 1});
  return y;
}

TEST_CASE("few outputs have the bits that they have among many, for every number of rows",
          "[ops][linear]") {
  OpFixture ops;
  TestRandom random(213);
  // Two, four and eight parts of the columns, runs that end before they are full or are empty.
  for (const int32_t in : {528, 1024, 2064, 16384}) {
    const TestWeight wide = MakeWeight(random, DType::kF32, kWideOutputs, in, 0);
    RowMatrix x(kRows, in, DType::kF32, kAlignedGap);
    x.Randomize(random, kRows);
    const RowMatrix all = RunLinear(ops, x, wide.weight, kRows, kRows);
    for (const int32_t out : {4, 24, 32, 33, 128}) {
      Weight narrow = wide.weight;
      narrow.out = out;
      for (const int32_t live : {0, 1, 7, 8, 9, 48, kRows}) {
        const RowMatrix y = RunLinear(ops, x, narrow, live, kRows);
        int different = 0;
        for (int32_t r = 0; r < live; ++r) {
          for (int32_t o = 0; o < out; ++o) different += y.Get(r, o) == all.Get(r, o) ? 0 : 1;
        }
        INFO("in " << in << " out " << out << " rows " << live);
        CHECK(different == 0);
        CHECK(y.PoisonIntactFrom(live));
      }
    }
  }
}

}  // namespace
}  // namespace firesteel
