#include "kernels/ops/hyper_mix/hyper_mix.h"

#include <cmath>
#include <vector>

#include "tests/kernels/support/op_fixture.h"
#include "tests/kernels/support/row_matrix.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kRows = 13;
constexpr int32_t kLive = 10;
constexpr double kEps = 1e-6;

size_t N(int64_t i) { return static_cast<size_t>(i); }
double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// Rows of whole quads that start at quads, where the columns are such; else every row starts anywhere.
int32_t GapBehind(int32_t hidden) { return hidden % 4 == 0 ? 8 : 5; }

struct Mix {
  Mix(TestRandom& random, int32_t streams_in, int32_t hidden_in, DType dtype)
      : streams(streams_in),
        hidden(hidden_in),
        x(kRows, streams_in * hidden_in, dtype, GapBehind(hidden_in)),
        mix(PoisonedFloats(kRows * (2 + streams_in) * streams_in)),
        base(RandomFloats(random, (2 + streams_in) * streams_in, -1.0F, 1.0F)),
        scale({0.7F, 1.3F, 2.1F}),
        weight(RandomBf16(random, hidden_in, 0.5F, 2.0F)),
        out(kRows, hidden_in, dtype, GapBehind(hidden_in)),
        post(PoisonedFloats(kRows * streams_in)),
        comb(PoisonedFloats(kRows * streams_in * streams_in)) {
    x.Randomize(random, kLive);
    for (int32_t i = 0; i < kLive * (2 + streams) * streams; ++i) {
      mix[N(i)] = random.Uniform(-2.0F, 2.0F);
    }
  }
  void Collapse(OpFixture& ops, int32_t live = kLive, int32_t iterations = 20) {
    ops.device().kernels().hyper_collapse(
        ops.stream(),
        HyperCollapseArgs{x.rows(),
                          mix.data(),
                          {base.data(), scale.data(), streams, iterations, 1e-6F, 1e-6F},
                          weight.data(),
                          out.rows(),
                          post.data(),
                          comb.data(),
                          &live,
                          kRows,
                          hidden});
  }
  double X(int32_t row, int32_t stream, int32_t c) const {
    return static_cast<double>(x.Get(row, stream * hidden + c));
  }
  // rho m + base of one mixing output, `part` choosing its scale.
  double M(int32_t row, int32_t index, int32_t part) const {
    double squares = 0.0;
    for (int32_t s = 0; s < streams; ++s) {
      for (int32_t c = 0; c < hidden; ++c) squares += X(row, s, c) * X(row, s, c);
    }
    const double rho = 1.0 / std::sqrt(squares / (streams * hidden) + 1e-6);
    return static_cast<double>(mix[N(row * (2 + streams) * streams + index)]) * rho *
               static_cast<double>(scale[N(part)]) +
           static_cast<double>(base[N(index)]);
  }
  double Comb(int32_t row, int32_t j, int32_t k) const {
    return static_cast<double>(comb[N((row * streams + j) * streams + k)]);
  }

  int32_t streams;
  int32_t hidden;
  RowMatrix x;
  std::vector<float> mix, base, scale;
  std::vector<uint16_t> weight;
  RowMatrix out;
  std::vector<float> post, comb;
};

// C [streams, streams] by the definition: softmax rows, columns, then rows and columns in turn.
std::vector<double> SinkhornOracle(const Mix& m, int32_t row) {
  const int32_t n = m.streams;
  std::vector<double> c(N(n * n));
  for (int32_t j = 0; j < n; ++j) {
    double sum = 0.0;
    for (int32_t k = 0; k < n; ++k) {
      c[N(j * n + k)] = std::exp(m.M(row, 2 * n + j * n + k, 2));
      sum += c[N(j * n + k)];
    }
    for (int32_t k = 0; k < n; ++k) c[N(j * n + k)] = c[N(j * n + k)] / sum + kEps;
  }
  for (int32_t i = 0; i < 39; ++i) {
    const bool columns = i % 2 == 0;
    for (int32_t a = 0; a < n; ++a) {
      double sum = kEps;
      for (int32_t b = 0; b < n; ++b) sum += columns ? c[N(b * n + a)] : c[N(a * n + b)];
      for (int32_t b = 0; b < n; ++b) (columns ? c[N(b * n + a)] : c[N(a * n + b)]) /= sum;
    }
  }
  return c;
}

TEST_CASE("collapse equals its definition in double precision", "[ops][hyper_mix]") {
  OpFixture ops(3);
  TestRandom random(70);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  const int32_t streams = GENERATE(1, 2, 3, 4);
  const int32_t hidden = GENERATE(3, 16, 65, 4104);
  Mix m(random, streams, hidden, dtype);
  m.Collapse(ops);
  int wrong = 0;
  for (int32_t r = 0; r < kLive; ++r) {
    std::vector<double> collapsed(N(hidden), 0.0);
    double squares = 0.0;
    for (int32_t s = 0; s < streams; ++s) {
      const double pre = Sigmoid(m.M(r, s, 0)) + kEps;
      for (int32_t c = 0; c < hidden; ++c) collapsed[N(c)] += pre * m.X(r, s, c);
      const double post = 2.0 * Sigmoid(m.M(r, streams + s, 1));
      wrong += std::fabs(static_cast<double>(m.post[N(r * streams + s)]) - post) < 1e-5 ? 0 : 1;
    }
    for (const double v : collapsed) squares += v * v;
    const double scale = 1.0 / std::sqrt(squares / hidden + 1e-6);
    for (int32_t c = 0; c < hidden; ++c) {
      const double wanted =
          collapsed[N(c)] * scale * static_cast<double>(Bf16ToFloat(m.weight[N(c)]));
      const double tolerance = dtype == DType::kF32 ? 2e-5 : 0x1p-6;
      if (!(std::fabs(static_cast<double>(m.out.Get(r, c)) - wanted) < tolerance)) ++wrong;
    }
    const std::vector<double> comb = SinkhornOracle(m, r);
    for (int32_t i = 0; i < streams * streams; ++i) {
      const double found = static_cast<double>(m.comb[N(r * streams * streams + i)]);
      if (!(std::fabs(found - comb[N(i)]) < 1e-5)) ++wrong;
    }
  }
  CHECK(wrong == 0);
  CHECK(m.out.PoisonIntactFrom(kLive));
  for (size_t i = N(kLive * streams); i < m.post.size(); ++i) CHECK(IsPoison(m.post[i]));
  for (size_t i = N(kLive * streams * streams); i < m.comb.size(); ++i) CHECK(IsPoison(m.comb[i]));
}

TEST_CASE("rows and columns of the mixing matrix sum to nearly one", "[ops][hyper_mix]") {
  OpFixture ops(2);
  TestRandom random(71);
  Mix m(random, 4, 24, DType::kF32);
  m.scale[2] = 0.5F;  // 20 rounds need not converge for strongly peaked matrices
  m.Collapse(ops);
  for (int32_t r = 0; r < kLive; ++r) {
    for (int32_t a = 0; a < 4; ++a) {
      double row = 0.0;
      double column = 0.0;
      for (int32_t b = 0; b < 4; ++b) {
        row += m.Comb(r, a, b);
        column += m.Comb(r, b, a);
        CHECK(m.Comb(r, a, b) >= 0.0);
      }
      CHECK(std::fabs(column - 1.0) < 1e-4);
      CHECK(std::fabs(row - 1.0) < 1e-3);
    }
  }
}

TEST_CASE("expand sums over the first index of the mixing matrix", "[ops][hyper_mix]") {
  OpFixture ops(1);
  RowMatrix x(1, 2);
  RowMatrix f(1, 1);
  x.Set(0, 0, 10.0F);
  x.Set(0, 1, 100.0F);
  f.Set(0, 0, 1000.0F);
  const float post[2] = {2.0F, 3.0F};
  const float comb[4] = {0.1F, 0.9F, 0.0F, 1.0F};  // not symmetric: C[0][1] != C[1][0]
  const int32_t live = 1;
  ops.device().kernels().hyper_expand(
      ops.stream(), HyperExpandArgs{x.rows(), f.rows(), post, comb, &live, 1, 1, 2});
  CHECK(std::fabs(x.Get(0, 0) - (2000.0F + 0.1F * 10.0F)) < 1e-3F);
  CHECK(std::fabs(x.Get(0, 1) - (3000.0F + 0.9F * 10.0F + 100.0F)) < 1e-3F);
}

TEST_CASE("expand equals its definition in double precision", "[ops][hyper_mix]") {
  OpFixture ops(3);
  TestRandom random(72);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  const int32_t streams = GENERATE(1, 4);
  const int32_t hidden = GENERATE(1, 19, 48, 520);
  RowMatrix x(kRows, streams * hidden, dtype, GapBehind(hidden));
  RowMatrix f(kRows, hidden, dtype, GapBehind(hidden));
  x.Randomize(random, kLive);
  f.Randomize(random, kLive);
  const RowMatrix before = x;
  const std::vector<float> post = RandomFloats(random, kRows * streams, 0.0F, 2.0F);
  const std::vector<float> comb = RandomFloats(random, kRows * streams * streams, 0.0F, 1.0F);
  const int32_t live = kLive;
  ops.device().kernels().hyper_expand(
      ops.stream(),
      HyperExpandArgs{x.rows(), f.rows(), post.data(), comb.data(), &live, kRows, hidden, streams});
  int wrong = 0;
  for (int32_t r = 0; r < kLive; ++r) {
    for (int32_t k = 0; k < streams; ++k) {
      for (int32_t c = 0; c < hidden; ++c) {
        double wanted =
            static_cast<double>(post[N(r * streams + k)]) * static_cast<double>(f.Get(r, c));
        for (int32_t j = 0; j < streams; ++j) {
          wanted += static_cast<double>(comb[N((r * streams + j) * streams + k)]) *
                    static_cast<double>(before.Get(r, j * hidden + c));
        }
        const double tolerance = dtype == DType::kF32 ? 2e-6 : 0x1p-6;
        const double found = static_cast<double>(x.Get(r, k * hidden + c));
        if (!(std::fabs(found - wanted) < tolerance)) ++wrong;
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(x.PoisonIntactFrom(kLive));
}

TEST_CASE("the head collapse weighs the streams and does not norm", "[ops][hyper_mix]") {
  OpFixture ops(3);
  TestRandom random(73);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  const int32_t hidden = GENERATE(21, 4104);
  Mix m(random, 4, hidden, dtype);
  std::vector<float> head = PoisonedFloats(kRows * 4);
  for (int32_t i = 0; i < kLive * 4; ++i) head[N(i)] = random.Uniform(-2.0F, 2.0F);
  const int32_t live = kLive;
  ops.device().kernels().hyper_head(
      ops.stream(), HyperHeadArgs{m.x.rows(),
                                  head.data(),
                                  {m.base.data(), m.scale.data(), 4, 20, 1e-6F, 1e-6F},
                                  m.out.rows(),
                                  &live,
                                  kRows,
                                  hidden});
  int wrong = 0;
  for (int32_t r = 0; r < kLive; ++r) {
    double squares = 0.0;
    for (int32_t i = 0; i < 4 * hidden; ++i) {
      squares += m.X(r, i / hidden, i % hidden) * m.X(r, i / hidden, i % hidden);
    }
    const double rho = 1.0 / std::sqrt(squares / (4 * hidden) + 1e-6);
    for (int32_t c = 0; c < hidden; ++c) {
      double wanted = 0.0;
      for (int32_t s = 0; s < 4; ++s) {
        const double logit =
            static_cast<double>(head[N(r * 4 + s)]) * rho * 0.7 + static_cast<double>(m.base[N(s)]);
        wanted += (Sigmoid(logit) + kEps) * m.X(r, s, c);
      }
      const double tolerance = dtype == DType::kF32 ? 5e-6 : 0x1p-7;
      if (!(std::fabs(static_cast<double>(m.out.Get(r, c)) - wanted) < tolerance)) ++wrong;
    }
  }
  CHECK(wrong == 0);
  CHECK(m.out.PoisonIntactFrom(kLive));
}

TEST_CASE("a row's mix has the same bits alone and among others", "[ops][hyper_mix]") {
  OpFixture ops(3);
  TestRandom random(74);
  const int32_t hidden = GENERATE(33, 4104);
  Mix all(random, 4, hidden, DType::kF32);
  all.Collapse(ops);
  for (const int32_t row : {0, 4, 9}) {
    Mix one(random, 4, hidden, DType::kF32);
    one.base = all.base;
    one.weight = all.weight;
    one.x.CopyRow(0, all.x, row);
    std::copy_n(all.mix.begin() + row * 24, 24, one.mix.begin());
    one.Collapse(ops, 1);
    CHECK(one.out.RowBits(0) == all.out.RowBits(row));
    for (int32_t i = 0; i < 16; ++i) CHECK(one.comb[N(i)] == all.comb[N(row * 16 + i)]);
  }
}

}  // namespace
}  // namespace firesteel
