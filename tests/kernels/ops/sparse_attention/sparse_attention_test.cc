#include "kernels/ops/sparse_attention/sparse_attention.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/kernels/support/attention_fixture.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST_CASE("attention equals a double-precision softmax for all head counts",
          "[ops][sparse_attention]") {
  OpFixture ops(3);
  for (const int32_t heads : {1, 4, 6, 8, 16}) {
    for (const int32_t head_dim : {16, 32, 80, 144}) {
      for (const int32_t keys : {1, 2, 17, 133}) {
        AttentionFixture f({.heads = heads, .head_dim = head_dim, .rows = 3, .window_keys = keys},
                           120);
        const RowMatrix out = f.Run(ops);
        INFO("heads " << heads << " head_dim " << head_dim << " keys " << keys);
        CHECK(f.CountWrong(out, 5e-6) == 0);
        CHECK(out.PoisonIntactFrom(3));
      }
    }
  }
}

TEST_CASE("both pools share one softmax", "[ops][sparse_attention]") {
  OpFixture ops(3);
  for (const int32_t window : {0, 1, 40}) {
    for (const int32_t extra : {0, 1, 64}) {
      AttentionFixture f({.heads = 4, .window_keys = window, .extra_keys = extra}, 121);
      const RowMatrix out = f.Run(ops);
      INFO("window " << window << " extra " << extra);
      CHECK(f.CountWrong(out, 5e-6) == 0);
      CHECK(out.PoisonIntactFrom(f.s.rows));
    }
  }
}

TEST_CASE("every cache format attends over the values it decodes to", "[ops][sparse_attention]") {
  OpFixture ops(3);
  const KvFormat format =
      GENERATE(KvFormat::kF32, KvFormat::kBf16, KvFormat::kFp8, KvFormat::kFp8Index);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  const int32_t heads = GENERATE(1, 8);
  AttentionFixture f({.heads = heads,
                      .head_dim = 80,
                      .window_keys = 33,
                      .extra_keys = 21,
                      .format = format,
                      .dtype = dtype},
                     122);
  const RowMatrix out = f.Run(ops);
  CHECK(f.CountWrong(out, dtype == DType::kF32 ? 5e-6 : 0x1p-8) == 0);
  CHECK(out.PoisonIntactFrom(f.s.rows));
}

// DeepSeek's head shape, for which a back end may have kernels of its own.
AttentionShape WideHeads(int32_t heads, int32_t rows, KvFormat format, DType dtype) {
  AttentionShape shape;
  shape.heads = heads;
  shape.head_dim = 512;
  shape.rows = rows;
  shape.format = format;
  shape.dtype = dtype;
  shape.rope = 64;
  return shape;
}

TEST_CASE("512 wide heads attend over lists that end anywhere in a tile",
          "[ops][sparse_attention]") {
  OpFixture ops(3);
  const KvFormat format = GENERATE(KvFormat::kF32, KvFormat::kBf16, KvFormat::kFp8);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  const int32_t gap = GENERATE(5, 8);  // rows at odd addresses, and at multiples of 16 bytes
  for (const int32_t heads : {3, 8, 64}) {
    for (const auto& [window, extra] :
         {std::pair{1, -1}, {0, 65}, {63, 64}, {133, -1}, {128, 130}, {0, 0}}) {
      AttentionShape shape = WideHeads(heads, 2, format, dtype);
      shape.window_keys = window;
      shape.extra_keys = extra;
      shape.gap = gap;
      AttentionFixture f(shape, 130);
      const RowMatrix out = f.Run(ops);
      INFO("heads " << heads << " window " << window << " extra " << extra);
      CHECK(f.CountWrong(out, dtype == DType::kF32 ? 5e-6 : 0x1p-8) == 0);
      CHECK(out.PoisonIntactFrom(2));
    }
  }
}

TEST_CASE("512 wide heads of a draft block see the whole block", "[ops][sparse_attention]") {
  OpFixture ops(2);
  const KvFormat format = GENERATE(KvFormat::kBf16, KvFormat::kFp8);
  AttentionShape shape = WideHeads(16, 5, format, DType::kBf16);
  shape.rows_per_list = 5;
  shape.window_keys = 133;
  AttentionFixture f(shape, 131);
  f.sink.assign(16, -kInfinity);
  for (int32_t t = 0; t < 133; ++t) f.WriteWindow(f.Window(0, t), 1.0F);
  const RowMatrix ones = f.Run(ops);
  for (int32_t r = 0; r < 5; ++r) {
    for (int32_t c = 0; c < ones.cols(); ++c) REQUIRE(ones.Get(r, c) == 1.0F);
  }
  f.WriteWindow(f.Window(0, 132), 40.0F);
  for (int32_t c = 0; c < f.q.cols(); ++c) f.q.Set(0, c, 5.0F);
  const RowMatrix last = f.Run(ops);
  for (int32_t c = 0; c < last.cols(); ++c) REQUIRE(last.Get(0, c) == 40.0F);
}

// Dense rows over one short list, for which a back end may have kernels of its own.
TEST_CASE("512 wide heads attend over short lists that a block or a row has to itself",
          "[ops][sparse_attention]") {
  OpFixture ops(3);
  const KvFormat format = GENERATE(KvFormat::kBf16, KvFormat::kFp8);
  const int32_t rows_per_list = GENERATE(1, 3, 5);
  for (const int32_t heads : {8, 16, 24, 64}) {
    for (const int32_t keys : {1, 64, 128, 133}) {
      AttentionShape shape = WideHeads(heads, 2 * rows_per_list, format, DType::kBf16);
      shape.rows_per_list = rows_per_list;
      shape.window_keys = keys;
      shape.gap = 0;
      AttentionFixture f(shape, 134);
      f.SetValid(1, keys - 1, 0);
      const RowMatrix out = f.Run(ops);
      INFO("heads " << heads << ", keys " << keys);
      CHECK(f.CountWrong(out, 0x1p-8) == 0);
      CHECK(out.PoisonIntactFrom(shape.rows));
    }
  }
}

TEST_CASE("512 wide heads of a block have the same bits in a batch of any size",
          "[ops][sparse_attention]") {
  OpFixture ops(2);
  const KvFormat format = GENERATE(KvFormat::kBf16, KvFormat::kFp8);
  const int32_t rows_per_list = GENERATE(1, 5);
  for (const int32_t heads : {16, 64}) {
    AttentionShape shape = WideHeads(heads, 60 * rows_per_list, format, DType::kBf16);
    shape.rows_per_list = rows_per_list;
    shape.window_keys = 133;
    shape.gap = 0;
    AttentionFixture batch(shape, 135);
    batch.FillPools();
    batch.SetValid(3, 64, 0);
    const RowMatrix wanted = batch.Run(ops);
    shape.rows = rows_per_list;
    AttentionFixture alone(shape, 136);
    alone.FillPools();
    for (const int32_t list : {0, 3, 59}) {
      for (int32_t r = 0; r < rows_per_list; ++r) {
        alone.TakeRow(r, batch, list * rows_per_list + r);
      }
      const RowMatrix out = alone.Run(ops);
      for (int32_t r = 0; r < rows_per_list; ++r) {
        INFO("heads " << heads << ", list " << list << ", row " << r);
        CHECK(out.RowBits(r) == wanted.RowBits(list * rows_per_list + r));
      }
    }
  }
}

TEST_CASE("512 wide heads have the same bits in a batch of any size", "[ops][sparse_attention]") {
  OpFixture ops(2);
  const KvFormat format = GENERATE(KvFormat::kBf16, KvFormat::kFp8);
  const DType dtype = GENERATE(DType::kF32, DType::kBf16);
  AttentionShape shape = WideHeads(64, 70, format, dtype);
  shape.gap = GENERATE(5, 8);
  shape.window_keys = 70;
  shape.extra_keys = 5;
  AttentionFixture batch(shape, 132);
  batch.FillPools();
  batch.SetValid(3, 64, 0);
  const RowMatrix wanted = batch.Run(ops);
  shape.rows = 1;
  AttentionFixture alone(shape, 133);
  alone.FillPools();
  for (const int32_t r : {0, 3, 40, 69}) {
    alone.TakeRow(0, batch, r);
    CHECK(alone.Run(ops).RowBits(0) == wanted.RowBits(r));
  }
}

TEST_CASE("133 keys of value one in a 256 wide list average to one", "[ops][sparse_attention]") {
  OpFixture ops(2);
  AttentionFixture f({.heads = 4, .rows = 5, .rows_per_list = 5, .window_keys = 133}, 123);
  f.sink.assign(4, -kInfinity);
  for (int32_t t = 0; t < 133; ++t) f.WriteWindow(f.Window(0, t), 1.0F);
  const RowMatrix out = f.Run(ops);
  for (int32_t r = 0; r < 5; ++r) {
    for (int32_t c = 0; c < out.cols(); ++c) REQUIRE(std::fabs(out.Get(r, c) - 1.0F) < 1e-6F);
  }
}

TEST_CASE("the first row of a block sees a dominating last key", "[ops][sparse_attention]") {
  OpFixture ops(1);
  AttentionFixture f({.heads = 4, .rows = 5, .rows_per_list = 5, .window_keys = 133}, 124);
  f.sink.assign(4, -kInfinity);
  f.WriteWindow(f.Window(0, 132), 40.0F);
  for (int32_t c = 0; c < f.q.cols(); ++c) f.q.Set(0, c, 5.0F);
  const RowMatrix out = f.Run(ops);
  for (int32_t c = 0; c < out.cols(); ++c) REQUIRE(std::fabs(out.Get(0, c) - 40.0F) < 1e-3F);
}

TEST_CASE("a row without keys gives zeros, whatever its sink", "[ops][sparse_attention]") {
  OpFixture ops(1);
  const float sink = GENERATE(0.0F, 50.0F, -kInfinity);
  AttentionFixture f({.heads = 4, .rows = 3, .window_keys = 9, .extra_keys = 9}, 125);
  f.sink.assign(4, sink);
  f.SetValid(1, 0, 0);
  const RowMatrix out = f.Run(ops);
  for (int32_t c = 0; c < out.cols(); ++c) {
    REQUIRE(out.Get(1, c) == 0.0F);
    REQUIRE(std::isfinite(out.Get(0, c)));
  }
  CHECK(f.CountWrong(out, 5e-6) == 0);
}

TEST_CASE("a huge sink takes all the weight without overflow", "[ops][sparse_attention]") {
  OpFixture ops(1);
  const float sink = GENERATE(1e4F, 1e30F, kInfinity);
  AttentionFixture f({.heads = 4, .rows = 2, .window_keys = 20}, 126);
  f.sink.assign(4, 0.0F);
  f.sink[2] = sink;
  const RowMatrix out = f.Run(ops);
  for (int32_t c = 0; c < f.s.head_dim; ++c) {
    REQUIRE(out.Get(0, 2 * f.s.head_dim + c) == 0.0F);
    REQUIRE(out.Get(0, f.s.head_dim + c) != 0.0F);
  }
}

TEST_CASE("large scores do not overflow", "[ops][sparse_attention]") {
  OpFixture ops(1);
  AttentionFixture f({.heads = 4, .rows = 2, .window_keys = 20}, 127);
  for (int32_t c = 0; c < f.q.cols(); ++c) f.q.Set(0, c, f.q.Get(0, c) * 1e4F);
  const RowMatrix out = f.Run(ops);
  CHECK(f.CountWrong(out, 1e-2) == 0);
}

TEST_CASE("query rows of a block share one list", "[ops][sparse_attention]") {
  OpFixture ops(3);
  const int32_t shared = GENERATE(1, 2, 5);
  AttentionFixture f(
      {.heads = 8, .rows = 10, .rows_per_list = shared, .window_keys = 30, .extra_keys = 5}, 128);
  const RowMatrix out = f.Run(ops);
  CHECK(f.CountWrong(out, 5e-6) == 0);
  CHECK(out.PoisonIntactFrom(10));
}

TEST_CASE("a row's bits are the same in every batch and for every worker count",
          "[ops][sparse_attention]") {
  OpFixture one_worker(1);
  OpFixture four_workers(4);
  const KvFormat format = GENERATE(KvFormat::kF32, KvFormat::kFp8);
  for (const int32_t heads : {6, 8}) {
    const AttentionShape shape{.heads = heads,
                               .head_dim = 80,
                               .rows = 9,
                               .window_keys = 50,
                               .extra_keys = 33,
                               .format = format};
    AttentionFixture all(shape, 129);
    all.SetValid(3, 7, 0);
    all.SetValid(4, 50, 1);
    const RowMatrix wanted = all.Run(one_worker);
    const RowMatrix parallel = all.Run(four_workers);
    for (int32_t r = 0; r < 9; ++r) {
      CHECK(parallel.RowBits(r) == wanted.RowBits(r));
      // The same pools with this row's query and lists moved to the front, alone in its batch.
      AttentionFixture moved(shape, 129);
      moved.TakeRow(0, all, r);
      CHECK(moved.Run(four_workers, 1).RowBits(0) == wanted.RowBits(r));
    }
    for (int32_t live = 0; live <= 9; ++live) {
      const RowMatrix out = all.Run(four_workers, live);
      for (int32_t r = 0; r < live; ++r) CHECK(out.RowBits(r) == wanted.RowBits(r));
      CHECK(out.PoisonIntactFrom(live));
    }
  }
}

}  // namespace
}  // namespace firesteel
