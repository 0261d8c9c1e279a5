// What only the CPU column's matrix product promises: calls that share its outputs.
#include <vector>

#include "kernels/core/math.h"
#include "kernels/core/parallel_for.h"
#include "kernels/cpu/gemm_rows.h"
#include "tests/kernels/support/linear_shapes.h"
#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/kernels/support/test_weight.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

TEST_CASE("splitting the outputs of a product into calls keeps its bits", "[ops][linear]") {
  TestRandom random(14);
  WorkerScratch scratch(size_t{1} << 20);
  for (const LinearShape& s : LinearShapes()) {
    const TestWeight w = MakeWeight(random, s.dtype, s.out, s.in, s.block);
    for (const int32_t rows : {3, 13}) {
      const std::vector<float> x = RandomFloats(random, int64_t{rows} * s.in, -1.0F, 1.0F);
      std::vector<float> whole(static_cast<size_t>(rows * s.out));
      std::vector<float> parts(whole.size());
      std::vector<const float*> in;
      std::vector<float*> whole_rows;
      std::vector<float*> part_rows;
      for (int32_t r = 0; r < rows; ++r) {
        in.push_back(x.data() + r * s.in);
        whole_rows.push_back(whole.data() + r * s.out);
        part_rows.push_back(parts.data() + r * s.out);
      }
      GemmRows(w.weight, in.data(), whole_rows.data(), rows, 0, s.out, scratch);
      for (int64_t o = 0; o < s.out;) {
        const int64_t stop = Min<int64_t>(s.out, o + 1 + random.Below(9));
        GemmRows(w.weight, in.data(), part_rows.data(), rows, o, stop, scratch);
        o = stop;
      }
      INFO(DTypeName(s.dtype) << " out " << s.out << " in " << s.in << " rows " << rows);
      CHECK(parts == whole);
    }
  }
}

// More fp32 values than a worker's scratch holds.
TEST_CASE("a bf16 product of any size is staged a few rows at a time", "[ops][linear]") {
  constexpr int32_t kIn = 32;
  constexpr int32_t kOut = 32768;
  constexpr int32_t kRows = 601;
  OpFixture ops(2);
  TestRandom random(19);
  const TestWeight w = MakeWeight(random, DType::kBf16, kOut, kIn, 0);
  RowMatrix x(kRows, kIn, DType::kBf16);
  x.Randomize(random, kRows);
  const auto run = [&](RowMatrix& in, int32_t rows) {
    RowMatrix y(rows, kOut, DType::kBf16);
    ops.device().kernels().linear(ops.stream(),
                                  LinearArgs{in.rows(), y.rows(), w.weight, &rows, rows, 1});
    return y;
  };
  const RowMatrix all = run(x, kRows);
  for (const int32_t row : {0, 47, 48, 599, 600}) {
    RowMatrix one(1, kIn, DType::kBf16);
    one.CopyRow(0, x, row);
    CHECK(run(one, 1).RowBits(0) == all.RowBits(row));
  }
}

}  // namespace
}  // namespace firesteel
