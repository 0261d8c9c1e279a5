// The CUDA column's expert products for bf16 rows and fp4 weights of a model's shapes.
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

constexpr int32_t kRows = 200;
constexpr int32_t kExperts = 7;
constexpr int32_t kTopK = 2;
constexpr int32_t kAlignedGap = 8;  // rows start at whole vectors

size_t N(int64_t i) { return static_cast<size_t>(i); }

// Long rows are shared by the warps of a block, of shorter ones each warp takes its own.
struct StreamShape {
  int32_t out;
  int32_t in;
};
constexpr StreamShape kShapes[] = {{64, 4096}, {256, 512}, {512, 256}};

struct Experts {
  Experts(TestRandom& random, const StreamShape& s) {
    for (int32_t e = 0; e < kExperts; ++e) {
      weight.push_back(MakeWeight(random, DType::kF4E2M1x2, s.out, s.in));
      view.push_back(weight.back().weight);
    }
  }
  std::vector<TestWeight> weight;
  std::vector<Weight> view;
};

// Expert 3 has every row, expert 5 none, the others a few: one to thirteen passes over the weights.
std::vector<int32_t> Choice() {
  std::vector<int32_t> expert;
  for (int32_t r = 0; r < kRows; ++r) {
    expert.push_back(3);
    const int32_t other = r * r % 6;
    expert.push_back(other == 3 || other == 5 ? 6 : other);
  }
  return expert;
}

struct Product {
  RowMatrix y;  // in pair order
  std::vector<int32_t> pair_of;
};

Product Run(OpFixture& ops, RowMatrix& x, const Experts& experts,
            const std::vector<int32_t>& choice, int32_t live, bool from_rows) {
  const Weight& first = experts.view.front();
  const int32_t pairs = live * kTopK;
  std::vector<int32_t> offset(N(kExperts + 1));
  std::vector<int32_t> pair_row(N(pairs));
  std::vector<int32_t> pair_choice(N(pairs));
  Product p{RowMatrix(kRows * kTopK, first.out), std::vector<int32_t>(N(pairs))};
  const KernelTable& kernels = ops.device().kernels();
  kernels.moe_group(ops.stream(), MoeGroupArgs{choice.data(),
                                               {offset.data(), pair_row.data(), pair_choice.data(),
                                                p.pair_of.data()},
                                               &live,
                                               live,
                                               kExperts,
                                               kTopK});
  RowMatrix by_pair(from_rows ? 1 : pairs, x.cols(), DType::kBf16, kAlignedGap);
  for (int32_t i = 0; !from_rows && i < pairs; ++i) by_pair.CopyRow(i, x, pair_row[N(i)]);
  kernels.grouped_linear(ops.stream(), GroupedLinearArgs{from_rows ? x.rows() : by_pair.rows(),
                                                         p.y.rows(),
                                                         {experts.view.data(), first},
                                                         offset.data(),
                                                         from_rows ? pair_row.data() : nullptr,
                                                         kExperts,
                                                         pairs});
  return p;
}

int CountWrong(const Product& p, const RowMatrix& x, const Experts& experts,
               const std::vector<int32_t>& choice, int32_t live) {
  const Weight& first = experts.view.front();
  int wrong = 0;
  for (int32_t i = 0; i < live * kTopK; ++i) {
    const TestWeight& w = experts.weight[N(choice[N(i)])];
    for (int32_t o = i % 5; o < first.out; o += 5) {
      double value = 0.0;
      double magnitude = 0.0;
      for (int32_t k = 0; k < first.in; ++k) {
        const double term = static_cast<double>(x.Get(i / kTopK, k)) * w.At(o, k);
        value += term;
        magnitude += std::fabs(term);
      }
      const double found = static_cast<double>(p.y.Get(p.pair_of[N(i)], o));
      if (!(std::fabs(found - value) <= 1e-6 * magnitude)) ++wrong;
    }
  }
  return wrong;
}

TEST_CASE("streamed experts equal a double-precision product", "[ops][moe_experts]") {
  OpFixture ops;
  TestRandom random(220);
  const std::vector<int32_t> choice = Choice();
  for (const StreamShape& s : kShapes) {
    const Experts experts(random, s);
    RowMatrix x(kRows, s.in, DType::kBf16, kAlignedGap);
    x.Randomize(random, 45);
    for (const bool from_rows : {false, true}) {
      const Product p = Run(ops, x, experts, choice, 45, from_rows);
      INFO("out " << s.out << " in " << s.in << " from rows " << from_rows);
      CHECK(CountWrong(p, x, experts, choice, 45) == 0);
      CHECK(p.y.PoisonIntactFrom(45 * kTopK));
    }
  }
}

TEST_CASE("streamed experts take scales of every size", "[ops][moe_experts]") {
  OpFixture ops;
  TestRandom random(221);
  const std::vector<int32_t> choice = Choice();
  for (const StreamShape& s : kShapes) {
    Experts experts(random, s);
    // Some tiles have only small scales, others a large one in some lane.
    for (TestWeight& w : experts.weight) {
      for (int32_t i = 0; i < 40; ++i) {
        const int32_t tile = random.Below(s.out * s.in / 32);
        const uint8_t scale = static_cast<uint8_t>(i % 2 == 0 ? 126 + i : 80 - i);
        w.scale[N(tile)] = scale;
        for (int64_t k = int64_t{tile} * 32; k < int64_t{tile} * 32 + 32; ++k) {
          const int nibble = w.bytes[N(k / 2)] >> (4 * (k % 2)) & 15;
          w.value[N(k)] = ReferenceE2M1(static_cast<uint8_t>(nibble)) * ReferenceE8M0(scale);
        }
      }
    }
    RowMatrix x(kRows, s.in, DType::kBf16, kAlignedGap);
    x.Randomize(random, 20);
    const Product p = Run(ops, x, experts, choice, 20, true);
    INFO("out " << s.out << " in " << s.in);
    CHECK(CountWrong(p, x, experts, choice, 20) == 0);
  }
}

TEST_CASE("a streamed expert's row has the same bits for every number of rows",
          "[ops][moe_experts]") {
  OpFixture ops;
  TestRandom random(222);
  const std::vector<int32_t> choice = Choice();
  for (const StreamShape& s : kShapes) {
    const Experts experts(random, s);
    RowMatrix x(kRows, s.in, DType::kBf16, kAlignedGap);
    x.Randomize(random, kRows);
    const Product all = Run(ops, x, experts, choice, kRows, true);
    for (int32_t live = 0; live < kRows; ++live) {
      const Product few = Run(ops, x, experts, choice, live, true);
      int different = 0;
      for (int32_t i = 0; i < live * kTopK; ++i) {
        different += few.y.RowBits(few.pair_of[N(i)]) == all.y.RowBits(all.pair_of[N(i)]) ? 0 : 1;
      }
      INFO("out " << s.out << " in " << s.in << " rows " << live);
      CHECK(different == 0);
      CHECK(few.y.PoisonIntactFrom(live * kTopK));
    }
  }
}

}  // namespace
}  // namespace firesteel
