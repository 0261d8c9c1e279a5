// What only the CPU column's matrix product promises: calls that share its outputs.
#include <vector>

#include "kernels/core/float_codec.h"
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

// One column of x is 1 and the others are 0, so that each product is one decoded weight.
TEST_CASE("every fp8 code keeps its value under every scale that fits", "[ops][linear]") {
  constexpr int32_t kIn = 256;
  constexpr int32_t kBlock = 32;
  constexpr int32_t kTiles = kIn / kBlock;
  WorkerScratch scratch(size_t{1} << 20);
  const std::vector<uint8_t> scales = {0, 1, 7, 119, 134, 135, 200, 246};
  // A scale above 2^7 takes the whole matrix another way: once without one, once with.
  for (const size_t scale_count : {size_t{5}, scales.size()}) {
    std::vector<uint8_t> codes(size_t{kBlock} * kIn);
    std::vector<uint8_t> tiles(kTiles);
    for (size_t t = 0; t < tiles.size(); ++t) tiles[t] = scales[t % scale_count];
    for (size_t i = 0; i < codes.size(); ++i) {
      // Each tile sees all codes but NaN.
      codes[i] = static_cast<uint8_t>(i % kIn % kBlock * 8 + i / kIn % 8);
      if ((codes[i] & 0x7fU) == 0x7fU) codes[i] = 0x80;
    }
    const Weight w{codes.data(), tiles.data(), DType::kF8E4M3, kBlock, kIn, kBlock};
    for (const int32_t rows : {1, 3, 6, 13}) {
      for (int32_t k = 0; k < kIn; ++k) {
        std::vector<float> x(static_cast<size_t>(rows) * kIn);
        std::vector<float> y(static_cast<size_t>(rows) * kBlock);
        std::vector<const float*> in;
        std::vector<float*> out;
        for (int32_t r = 0; r < rows; ++r) {
          x[static_cast<size_t>(r * kIn + k)] = 1.0F;
          in.push_back(x.data() + r * kIn);
          out.push_back(y.data() + r * kBlock);
        }
        GemmRows(w, in.data(), out.data(), rows, 0, kBlock, scratch);
        for (int32_t o = 0; o < kBlock; ++o) {
          const float weight = E4M3ToFloat(codes[static_cast<size_t>(o * kIn + k)]) *
                               E8M0ToFloat(tiles[static_cast<size_t>(k / kBlock)]);
          INFO("column " << k << " output " << o << " rows " << rows);
          REQUIRE(y[static_cast<size_t>((rows - 1) * kBlock + o)] == weight);
        }
      }
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
