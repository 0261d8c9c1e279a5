#include "kernels/ops/embed/embed.h"

#include <vector>

#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

TEST_CASE("embed repeats a token's row into every stream", "[ops][embed]") {
  OpFixture ops(3);
  TestRandom random(41);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  const int32_t streams = GENERATE(1, 4);
  constexpr int32_t kHidden = 9;
  constexpr int32_t kVocab = 30;
  const std::vector<uint16_t> table = RandomBf16(random, kVocab * kHidden, -2.0F, 2.0F);
  RowMatrix out(40, streams * kHidden, dtype);
  std::vector<int32_t> token(40, 1 << 28);  // padding tokens must not be looked up
  const int32_t live = 35;
  for (int32_t r = 0; r < live; ++r) token[static_cast<size_t>(r)] = (r * 7) % kVocab;
  ops.device().kernels().embed(
      ops.stream(), EmbedArgs{token.data(), table.data(), out.rows(), &live, 40, kHidden, streams});
  for (int32_t r = 0; r < live; ++r) {
    for (int32_t s = 0; s < streams; ++s) {
      for (int32_t c = 0; c < kHidden; ++c) {
        const size_t at = static_cast<size_t>(token[static_cast<size_t>(r)] * kHidden + c);
        REQUIRE(out.Get(r, s * kHidden + c) == Bf16ToFloat(table[at]));
      }
    }
  }
  CHECK(out.PoisonIntactFrom(live));
}

}  // namespace
}  // namespace firesteel
