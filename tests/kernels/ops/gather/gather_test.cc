#include "kernels/ops/gather/gather.h"

#include <vector>

#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

TEST_CASE("gather copies the listed rows bit for bit", "[ops][gather]") {
  OpFixture ops(3);
  TestRandom random(40);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  RowMatrix x(50, 13, dtype, 2);
  x.Randomize(random, 50);
  RowMatrix out(90, 13, dtype, 7);
  std::vector<int32_t> index(90, 1 << 28);  // padding entries must not be followed
  const int32_t live = 70;
  for (int32_t i = 0; i < live; ++i) index[static_cast<size_t>(i)] = random.Below(50);
  index[3] = index[2];
  ops.device().kernels().gather(ops.stream(),
                                GatherArgs{x.rows(), index.data(), out.rows(), &live, 90, 13});
  for (int32_t i = 0; i < live; ++i) {
    REQUIRE(out.RowBits(i) == x.RowBits(index[static_cast<size_t>(i)]));
  }
  CHECK(out.PoisonIntactFrom(live));
}

}  // namespace
}  // namespace firesteel
