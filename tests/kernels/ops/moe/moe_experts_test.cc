#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ops/moe/moe.h"
#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/kernels/support/test_weight.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

size_t N(int64_t i) { return static_cast<size_t>(i); }

// Unused columns behind a row: whether rows start at multiples of 16 bytes decides what a back end may do with them.
constexpr int32_t kOddGap = 5;
constexpr int32_t kAlignedGap = 8;

struct Grouping {
  Grouping(int32_t rows, int32_t experts, int32_t top_k)
      : offset(N(experts + 1), -7),
        pair_row(N(rows * top_k), -7),
        pair_choice(N(rows * top_k), -7),
        pair_of(N(rows * top_k), -7) {}
  MoeGroups groups() {
    return {offset.data(), pair_row.data(), pair_choice.data(), pair_of.data()};
  }
  std::vector<int32_t> offset, pair_row, pair_choice, pair_of;
};

Grouping Group(OpFixture& ops, const std::vector<int32_t>& expert, int32_t rows, int32_t live,
               int32_t experts, int32_t top_k) {
  Grouping g(rows, experts, top_k);
  ops.device().kernels().moe_group(
      ops.stream(), MoeGroupArgs{expert.data(), g.groups(), &live, rows, experts, top_k});
  return g;
}

// Distinct experts per row; padding rows name an expert far outside.
std::vector<int32_t> RandomChoice(TestRandom& random, int32_t rows, int32_t live, int32_t experts,
                                  int32_t top_k) {
  std::vector<int32_t> expert(N(rows * top_k), 1 << 28);
  for (int32_t r = 0; r < live; ++r) {
    const int32_t first = random.Below(experts);
    for (int32_t k = 0; k < top_k; ++k) {
      expert[N(r * top_k + k)] = (first + k * 3) % experts;
    }
  }
  return expert;
}

TEST_CASE("grouping lists every pair once, by expert and in row order", "[ops][moe_group]") {
  OpFixture ops(1);
  TestRandom random(60);
  constexpr int32_t kRows = 30;
  constexpr int32_t kTopK = 3;
  constexpr int32_t kExperts = 10;
  for (const int32_t live : {0, 1, 7, 30}) {
    const std::vector<int32_t> expert = RandomChoice(random, kRows, live, kExperts, kTopK);
    const Grouping g = Group(ops, expert, kRows, live, kExperts, kTopK);
    CHECK(g.offset[0] == 0);
    CHECK(g.offset[kExperts] == live * kTopK);
    std::vector<int> seen(N(kRows * kTopK), 0);
    for (int32_t e = 0; e < kExperts; ++e) {
      for (int32_t place = g.offset[N(e)]; place < g.offset[N(e + 1)]; ++place) {
        const int32_t choice = g.pair_choice[N(place)];
        ++seen[N(choice)];
        CHECK(expert[N(choice)] == e);
        CHECK(g.pair_row[N(place)] == choice / kTopK);
        CHECK(g.pair_of[N(choice)] == place);
        if (place > g.offset[N(e)]) CHECK(g.pair_row[N(place - 1)] < g.pair_row[N(place)]);
      }
    }
    for (int32_t p = 0; p < kRows * kTopK; ++p) CHECK(seen[N(p)] == (p < live * kTopK ? 1 : 0));
    for (int32_t p = live * kTopK; p < kRows * kTopK; ++p) {
      CHECK(g.pair_row[N(p)] == -7);
      CHECK(g.pair_of[N(p)] == -7);
    }
  }
}

// One whole expert pass of a layer with `top_k` choices; the oracle works per row without any
// grouping.
struct Layer {
  Layer(TestRandom& random, DType dtype, int32_t block) {
    for (int32_t e = 0; e < kExperts; ++e) {
      gate.push_back(MakeWeight(random, dtype, kInner, kHidden, block));
      down.push_back(MakeWeight(random, dtype, kHidden, kInner, block));
      gate_view.push_back(gate.back().weight);
      down_view.push_back(down.back().weight);
    }
  }
  static constexpr int32_t kExperts = 7;
  static constexpr int32_t kHidden = 64;
  static constexpr int32_t kInner = 96;
  static constexpr int32_t kTopK = 3;
  std::vector<TestWeight> gate, down;
  std::vector<Weight> gate_view, down_view;
};

// out = sum_k down_e(k) (gate_e(k) x) + shared, without an activation in between.
RowMatrix RunLayer(OpFixture& ops, const Layer& l, RowMatrix& x, RowMatrix& shared,
                   const std::vector<int32_t>& expert, int32_t rows, int32_t live, DType dtype,
                   int32_t gap = kOddGap) {
  const KernelTable& kernels = ops.device().kernels();
  Grouping g = Group(ops, expert, rows, live, Layer::kExperts, Layer::kTopK);
  const int32_t pairs = rows * Layer::kTopK;
  RowMatrix inner(pairs, Layer::kInner, dtype, gap);
  RowMatrix pair_out(pairs, Layer::kHidden, dtype, gap);
  kernels.grouped_linear(ops.stream(), GroupedLinearArgs{x.rows(),
                                                         inner.rows(),
                                                         {l.gate_view.data(), l.gate_view[0]},
                                                         g.offset.data(),
                                                         g.pair_row.data(),
                                                         Layer::kExperts,
                                                         pairs});
  kernels.grouped_linear(ops.stream(), GroupedLinearArgs{inner.rows(),
                                                         pair_out.rows(),
                                                         {l.down_view.data(), l.down_view[0]},
                                                         g.offset.data(),
                                                         nullptr,
                                                         Layer::kExperts,
                                                         pairs});
  CHECK(inner.PoisonIntactFrom(live * Layer::kTopK));
  CHECK(pair_out.PoisonIntactFrom(live * Layer::kTopK));
  RowMatrix out(rows, Layer::kHidden, dtype);
  kernels.moe_combine(ops.stream(),
                      MoeCombineArgs{pair_out.rows(), shared.rows(), g.pair_of.data(), out.rows(),
                                     &live, rows, Layer::kHidden, Layer::kTopK});
  return out;
}

// `magnitude`: the sum of the absolute terms, which scales rounding errors; may be null.
double LayerOracle(const Layer& l, const RowMatrix& x, const RowMatrix& shared, int32_t row,
                   const std::vector<int32_t>& expert, int32_t column,
                   double* magnitude = nullptr) {
  double sum = static_cast<double>(shared.Get(row, column));
  if (magnitude != nullptr) *magnitude = std::fabs(sum);
  for (int32_t k = 0; k < Layer::kTopK; ++k) {
    const size_t e = N(expert[N(row * Layer::kTopK + k)]);
    for (int32_t i = 0; i < Layer::kInner; ++i) {
      double inner = 0.0;
      for (int32_t c = 0; c < Layer::kHidden; ++c) {
        inner += static_cast<double>(x.Get(row, c)) * l.gate[e].At(i, c);
      }
      sum += inner * l.down[e].At(column, i);
      if (magnitude != nullptr) *magnitude += std::fabs(inner * l.down[e].At(column, i));
    }
  }
  return sum;
}

TEST_CASE("grouped experts and their sum equal a per-row evaluation", "[ops][moe_experts]") {
  OpFixture ops(3);
  TestRandom random(61);
  const DType dtype = GENERATE(DType::kF4E2M1x2, DType::kF8E4M3, DType::kBf16);
  const DType rows_dtype = GENERATE(DType::kF32, DType::kBf16);
  const int32_t gap = GENERATE(kOddGap, kAlignedGap);
  const Layer layer(random, dtype, 32);
  constexpr int32_t kRows = 40;
  for (const int32_t live : {0, 1, 6, 37}) {
    const std::vector<int32_t> expert =
        RandomChoice(random, kRows, live, Layer::kExperts, Layer::kTopK);
    RowMatrix x(kRows, Layer::kHidden, rows_dtype, gap);
    RowMatrix shared(kRows, Layer::kHidden, rows_dtype);
    x.Randomize(random, live);
    shared.Randomize(random, live);
    const RowMatrix out = RunLayer(ops, layer, x, shared, expert, kRows, live, DType::kF32, gap);
    int wrong = 0;
    for (int32_t r = 0; r < live; ++r) {
      for (int32_t c = 0; c < Layer::kHidden; c += 9) {
        const double wanted = LayerOracle(layer, x, shared, r, expert, c);
        const double found = static_cast<double>(out.Get(r, c));
        if (!(std::fabs(found - wanted) <= 1e-4 * (1.0 + std::fabs(wanted)))) ++wrong;
      }
    }
    INFO("live " << live);
    CHECK(wrong == 0);
    CHECK(out.PoisonIntactFrom(live));
  }
}

// Three roundings: between the matrices, of an expert's output and of the sum.
TEST_CASE("bf16 inside an expert pass costs its roundings and no more", "[ops][moe_experts]") {
  OpFixture ops(3);
  TestRandom random(65);
  const int32_t gap = GENERATE(kOddGap, kAlignedGap);
  const Layer layer(random, DType::kF4E2M1x2, 0);
  constexpr int32_t kRows = 90;
  constexpr int32_t kLive = 81;
  const std::vector<int32_t> expert =
      RandomChoice(random, kRows, kLive, Layer::kExperts, Layer::kTopK);
  RowMatrix x(kRows, Layer::kHidden, DType::kBf16, gap);
  RowMatrix shared(kRows, Layer::kHidden, DType::kBf16);
  x.Randomize(random, kLive);
  shared.Randomize(random, kLive);
  const RowMatrix out = RunLayer(ops, layer, x, shared, expert, kRows, kLive, DType::kBf16, gap);
  int wrong = 0;
  for (int32_t r = 0; r < kLive; ++r) {
    for (int32_t c = 0; c < Layer::kHidden; c += 9) {
      double magnitude;
      const double wanted = LayerOracle(layer, x, shared, r, expert, c, &magnitude);
      const double error = std::fabs(static_cast<double>(out.Get(r, c)) - wanted);
      if (!(error <= 3 * 0x1p-9 * magnitude + 1e-6)) ++wrong;
    }
  }
  CHECK(wrong == 0);
  CHECK(out.PoisonIntactFrom(kLive));
}

TEST_CASE("a row's expert sum has the same bits alone and in any batch", "[ops][moe_experts]") {
  OpFixture ops(3);
  TestRandom random(62);
  const DType storage = GENERATE(DType::kF32, DType::kBf16);
  const int32_t gap = GENERATE(kOddGap, kAlignedGap);
  const Layer layer(random, DType::kF4E2M1x2, 0);
  constexpr int32_t kRows = 40;
  const std::vector<int32_t> expert =
      RandomChoice(random, kRows, kRows, Layer::kExperts, Layer::kTopK);
  RowMatrix x(kRows, Layer::kHidden, storage, gap);
  RowMatrix shared(kRows, Layer::kHidden, storage);
  x.Randomize(random, kRows);
  shared.Randomize(random, kRows);
  const RowMatrix all = RunLayer(ops, layer, x, shared, expert, kRows, kRows, storage, gap);
  for (const int32_t first : {0, 11, 39}) {
    for (const int32_t count : {1, 2, 13}) {
      if (first + count > kRows) continue;
      RowMatrix few(kRows, Layer::kHidden, storage, gap);
      RowMatrix few_shared(kRows, Layer::kHidden, storage);
      std::vector<int32_t> few_expert(expert.size(), 1 << 28);
      for (int32_t r = 0; r < count; ++r) {
        few.CopyRow(r, x, first + r);
        few_shared.CopyRow(r, shared, first + r);
        for (int32_t k = 0; k < Layer::kTopK; ++k) {
          few_expert[N(r * Layer::kTopK + k)] = expert[N((first + r) * Layer::kTopK + k)];
        }
      }
      const RowMatrix out =
          RunLayer(ops, layer, few, few_shared, few_expert, kRows, count, storage, gap);
      for (int32_t r = 0; r < count; ++r) CHECK(out.RowBits(r) == all.RowBits(first + r));
    }
  }
}

TEST_CASE("the combination adds choices in routing order and the shared expert last",
          "[ops][moe_experts]") {
  OpFixture ops(1);
  RowMatrix pairs(3, 1);
  RowMatrix shared(1, 1);
  RowMatrix out(1, 1);
  // In fp32 (1e8 - 1e8) + 1 is 1, while any order that adds the 1 earlier loses it.
  pairs.Set(2, 0, 1e8F);
  pairs.Set(0, 0, -1e8F);
  pairs.Set(1, 0, 1.0F);
  shared.Set(0, 0, 0.25F);
  const int32_t pair_of[3] = {2, 0, 1};
  const int32_t live = 1;
  ops.device().kernels().moe_combine(
      ops.stream(),
      MoeCombineArgs{pairs.rows(), shared.rows(), pair_of, out.rows(), &live, 1, 1, 3});
  CHECK(out.Get(0, 0) == 1.25F);
}

TEST_CASE("swiglu clamps the gate from above and the value on both sides", "[ops][swiglu]") {
  OpFixture ops(3);
  TestRandom random(63);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  constexpr int32_t kRows = 60;
  constexpr int32_t kCols = 13;
  const int32_t live = 17;
  RowMatrix gate(kRows, kCols, dtype);
  RowMatrix up(kRows, kCols, dtype);
  RowMatrix out(kRows, kCols, dtype);
  gate.Randomize(random, live * 3, -30.0F, 30.0F);
  up.Randomize(random, live * 3, -30.0F, 30.0F);
  gate.Set(0, 0, -200.0F);
  gate.Set(0, 1, 200.0F);
  const std::vector<float> weight = RandomFloats(random, kRows, 0.1F, 2.0F);
  std::vector<int32_t> choice(kRows, 1 << 28);
  for (int32_t p = 0; p < live * 3; ++p) choice[N(p)] = (p * 5) % (live * 3);
  const bool weighted = GENERATE(false, true);
  ops.device().kernels().swiglu(
      ops.stream(),
      SwigluArgs{gate.rows(), up.rows(), out.rows(), weighted ? weight.data() : nullptr,
                 weighted ? choice.data() : nullptr, &live, 3, kRows, kCols, 10.0F});
  int wrong = 0;
  for (int32_t r = 0; r < live * 3; ++r) {
    const double w = weighted ? static_cast<double>(weight[N(choice[N(r)])]) : 1.0;
    for (int32_t c = 0; c < kCols; ++c) {
      const double g = std::min(static_cast<double>(gate.Get(r, c)), 10.0);
      const double u = std::clamp(static_cast<double>(up.Get(r, c)), -10.0, 10.0);
      const double wanted = g / (1.0 + std::exp(-g)) * u * w;
      const double found = static_cast<double>(out.Get(r, c));
      const double tolerance = dtype == DType::kF32 ? 1e-5 : 0x1p-8;
      if (!(std::fabs(found - wanted) <= tolerance * (std::fabs(wanted) + 1e-3))) ++wrong;
    }
  }
  CHECK(wrong == 0);
  CHECK(out.PoisonIntactFrom(live * 3));
}

TEST_CASE("swiglu may write over its gate", "[ops][swiglu]") {
  OpFixture ops(1);
  TestRandom random(64);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  const int32_t live = 3;
  RowMatrix gate(4, 9, dtype);
  RowMatrix up(4, 9, dtype);
  RowMatrix out(4, 9, dtype);
  gate.Randomize(random, 3);
  up.Randomize(random, 3);
  const auto run = [&](RowMatrix& to) {
    ops.device().kernels().swiglu(
        ops.stream(),
        SwigluArgs{gate.rows(), up.rows(), to.rows(), nullptr, nullptr, &live, 1, 4, 9, 10.0F});
  };
  run(out);
  run(gate);
  for (int32_t r = 0; r < 3; ++r) CHECK(gate.RowBits(r) == out.RowBits(r));
  CHECK(gate.PoisonIntactFrom(3));
}

}  // namespace
}  // namespace firesteel
