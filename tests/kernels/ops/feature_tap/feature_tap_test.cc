#include "kernels/ops/feature_tap/feature_tap.h"

#include <cmath>

#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

TEST_CASE("a tap writes the mean of the streams into its own columns", "[ops][feature_tap]") {
  OpFixture ops(3);
  TestRandom random(42);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  const int32_t streams = GENERATE(1, 4);
  constexpr int32_t kHidden = 11;
  constexpr int32_t kTaps = 3;
  RowMatrix x(40, streams * kHidden, dtype);
  RowMatrix features(40, kTaps * kHidden, dtype, 0);
  const int32_t live = 34;
  x.Randomize(random, live);
  Rows middle = features.rows();
  middle.data = static_cast<std::byte*>(middle.data) + kHidden * DTypeBytes(dtype);
  ops.device().kernels().feature_tap(ops.stream(),
                                     FeatureTapArgs{x.rows(), middle, &live, 40, kHidden, streams});
  for (int32_t r = 0; r < live; ++r) {
    for (int32_t c = 0; c < kHidden; ++c) {
      double mean = 0.0;
      for (int32_t s = 0; s < streams; ++s) {
        mean += static_cast<double>(x.Get(r, s * kHidden + c)) / streams;
      }
      const double tolerance = dtype == DType::kF32 ? 1e-6 : 0x1p-8;
      REQUIRE(std::fabs(static_cast<double>(features.Get(r, kHidden + c)) - mean) <= tolerance);
      REQUIRE(std::isnan(features.Get(r, c)));                // the tap before
      REQUIRE(std::isnan(features.Get(r, 2 * kHidden + c)));  // the tap after
    }
  }
  CHECK(features.PoisonIntactFrom(live));
}

}  // namespace
}  // namespace firesteel
