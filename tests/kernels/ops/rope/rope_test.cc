#include "kernels/ops/rope/rope.h"

#include <cmath>
#include <vector>

#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/rope_fixture.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kRows = 19;
constexpr int32_t kLive = 15;
constexpr int32_t kPositions = 64;

struct Case {
  int32_t heads;
  int32_t head_dim;
  int32_t rope;
};

RopeArgs MakeArgs(RowMatrix& x, const std::vector<int32_t>& position, const RopeFixture& rope,
                  const Case& c, const int32_t* live, bool inverse, bool norm) {
  return {x.rows(), position.data(), rope.table(), live, kRows,
          c.heads,  c.head_dim,      inverse,      norm, 1e-6F};
}

std::vector<int32_t> Positions(TestRandom& random) {
  std::vector<int32_t> position(kRows, -1000000);  // padding rows would read far outside
  for (int32_t r = 0; r < kLive; ++r) {
    position[static_cast<size_t>(r)] = r == 0 ? 0 : random.Below(kPositions);
  }
  return position;
}

TEST_CASE("rope rotates adjacent pairs of each head's tail", "[ops][rope]") {
  OpFixture ops(3);
  TestRandom random(30);
  const bool inverse = GENERATE(false, true);
  const bool norm = GENERATE(false, true);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  for (const Case& c : {Case{1, 8, 8}, Case{3, 16, 6}, Case{4, 64, 16}, Case{2, 130, 64}}) {
    const RopeFixture rope(kPositions, c.rope);
    const std::vector<int32_t> position = Positions(random);
    RowMatrix x(kRows, c.heads * c.head_dim, dtype);
    x.Randomize(random, kLive);
    const RowMatrix before = x;
    const int32_t live = kLive;
    ops.device().kernels().rope(ops.stream(), MakeArgs(x, position, rope, c, &live, inverse, norm));
    int wrong = 0;
    for (int32_t r = 0; r < kLive; ++r) {
      for (int32_t h = 0; h < c.heads; ++h) {
        std::vector<double> head;
        double squares = 0.0;
        for (int32_t i = 0; i < c.head_dim; ++i) {
          head.push_back(static_cast<double>(before.Get(r, h * c.head_dim + i)));
          squares += head.back() * head.back();
        }
        const double scale = norm ? 1.0 / std::sqrt(squares / c.head_dim + 1e-6) : 1.0;
        for (double& v : head) v *= scale;
        rope.Rotate(head, position[static_cast<size_t>(r)], inverse);
        const double tolerance = dtype == DType::kF32 ? 4e-6 : 0x1p-7;
        for (int32_t i = 0; i < c.head_dim; ++i) {
          const double found = static_cast<double>(x.Get(r, h * c.head_dim + i));
          if (!(std::fabs(found - head[static_cast<size_t>(i)]) <= tolerance)) ++wrong;
        }
      }
    }
    INFO("heads " << c.heads << " head_dim " << c.head_dim << " rope " << c.rope);
    CHECK(wrong == 0);
    CHECK(x.PoisonIntactFrom(kLive));
  }
}

TEST_CASE("the inverse rotation undoes the rotation", "[ops][rope]") {
  OpFixture ops(2);
  TestRandom random(31);
  const Case c{3, 32, 16};
  const RopeFixture rope(kPositions, c.rope);
  const std::vector<int32_t> position = Positions(random);
  RowMatrix x(kRows, c.heads * c.head_dim);
  x.Randomize(random, kLive);
  const RowMatrix before = x;
  const int32_t live = kLive;
  ops.device().kernels().rope(ops.stream(), MakeArgs(x, position, rope, c, &live, false, false));
  CHECK(x.RowBits(1) != before.RowBits(1));
  ops.device().kernels().rope(ops.stream(), MakeArgs(x, position, rope, c, &live, true, false));
  for (int32_t r = 0; r < kLive; ++r) {
    for (int32_t i = 0; i < c.heads * c.head_dim; ++i) {
      REQUIRE(std::fabs(x.Get(r, i) - before.Get(r, i)) < 1e-6F);
    }
  }
}

TEST_CASE("position 0 and the values before the tail are left as they are", "[ops][rope]") {
  OpFixture ops(1);
  TestRandom random(32);
  const Case c{2, 24, 8};
  const RopeFixture rope(kPositions, c.rope);
  std::vector<int32_t> position(kRows, 5);
  position[0] = 0;
  RowMatrix x(kRows, c.heads * c.head_dim);
  x.Randomize(random, 2);
  const RowMatrix before = x;
  const int32_t live = 2;
  ops.device().kernels().rope(ops.stream(), MakeArgs(x, position, rope, c, &live, false, false));
  CHECK(x.RowBits(0) == before.RowBits(0));
  for (int32_t h = 0; h < c.heads; ++h) {
    for (int32_t i = 0; i < c.head_dim - c.rope; ++i) {
      CHECK(x.Get(1, h * c.head_dim + i) == before.Get(1, h * c.head_dim + i));
    }
    for (int32_t i = c.head_dim - c.rope; i < c.head_dim; ++i) {
      CHECK(x.Get(1, h * c.head_dim + i) != before.Get(1, h * c.head_dim + i));
    }
  }
}

TEST_CASE("a rotation by 90 degrees moves the first of a pair to the second", "[ops][rope]") {
  OpFixture ops(1);
  const float cos[2] = {0.0F, 1.0F};
  const float sin[2] = {1.0F, 0.0F};
  RowMatrix x(1, 4);
  for (int32_t i = 0; i < 4; ++i) x.Set(0, i, static_cast<float>(i + 1));
  const int32_t position = 0;
  const int32_t live = 1;
  ops.device().kernels().rope(
      ops.stream(),
      RopeArgs{x.rows(), &position, {cos, sin, 4}, &live, 1, 1, 4, false, false, 0.0F});
  CHECK(x.Get(0, 0) == -2.0F);
  CHECK(x.Get(0, 1) == 1.0F);
  CHECK(x.Get(0, 2) == 3.0F);
  CHECK(x.Get(0, 3) == 4.0F);
}

}  // namespace
}  // namespace firesteel
