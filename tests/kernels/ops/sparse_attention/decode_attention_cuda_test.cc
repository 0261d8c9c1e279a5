// What the Hopper sparse decode attention promises beyond the operation's own tests. Needs a GPU of compute capability 9.0.
#include "kernels/ops/sparse_attention/sm90/decode_attention.h"

#include <utility>
#include <vector>

#include "kernels/cuda/cuda_stream.h"
#include "tests/kernels/support/attention_fixture.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

AttentionShape DecodeShape(int32_t heads, int32_t rows, KvFormat format) {
  AttentionShape shape;
  shape.heads = heads;
  shape.head_dim = 512;
  shape.rows = rows;
  shape.window_keys = 128;
  shape.extra_keys = 250;
  shape.format = format;
  shape.dtype = DType::kBf16;
  shape.rope = 64;
  shape.gap = 8;
  return shape;
}

RowMatrix RunHeads(OpFixture& ops, AttentionFixture& f, int32_t tile_heads) {
  RowMatrix out = f.Output();
  const int32_t live = f.s.rows;
  const SparseAttentionArgs args = f.Args(out, &live);
  REQUIRE(sm90::DecodeAttentionServes(args));
  REQUIRE(sm90::LaunchDecodeAttention(CudaStreamOf(ops.stream()), args, tile_heads) == cudaSuccess);
  REQUIRE(ops.stream().Synchronize().ok());
  return out;
}

TEST_CASE("a head has the same bits however many heads a cluster serves",
          "[ops][sparse_attention]") {
  OpFixture ops;
  const KvFormat format = GENERATE(KvFormat::kBf16, KvFormat::kFp8);
  AttentionFixture f(DecodeShape(64, 7, format), 140);
  f.FillPools();
  // No tile, one tile, an odd number of tiles, tiles cut short.
  const std::vector<std::pair<int32_t, int32_t>> valid = {
      {0, 0}, {1, 0}, {0, 3}, {128, 64}, {65, 66}, {128, 250}, {128, 129}};
  for (size_t r = 0; r < valid.size(); ++r) {
    f.SetValid(static_cast<int32_t>(r), valid[r].first, valid[r].second);
  }
  const RowMatrix wanted = RunHeads(ops, f, 64);
  CHECK(f.CountWrong(wanted, 0x1p-8) == 0);
  CHECK(wanted.PoisonIntactFrom(f.s.rows));
  for (const int32_t heads : {8, 16, 32}) {
    const RowMatrix out = RunHeads(ops, f, heads);
    for (int32_t r = 0; r < f.s.rows; ++r) CHECK(out.RowBits(r) == wanted.RowBits(r));
  }
}

TEST_CASE("keys of value one average to exactly one when the sink is off",
          "[ops][sparse_attention]") {
  OpFixture ops;
  const KvFormat format = GENERATE(KvFormat::kBf16, KvFormat::kFp8);
  AttentionShape shape = DecodeShape(16, 1, format);
  shape.extra_keys = -1;
  AttentionFixture f(shape, 141);
  f.sink.assign(16, -INFINITY);
  for (int32_t t = 0; t < 128; ++t) f.WriteWindow(f.Window(0, t), 1.0F);
  for (const int32_t valid : {1, 63, 64, 65, 127, 128}) {
    f.SetValid(0, valid, 0);
    const RowMatrix out = RunHeads(ops, f, 16);
    for (int32_t c = 0; c < out.cols(); ++c) REQUIRE(out.Get(0, c) == 1.0F);
  }
}

TEST_CASE("a replayed graph sees new queries, keys and lengths at the old addresses",
          "[ops][sparse_attention]") {
  OpFixture ops;
  const KvFormat format = GENERATE(KvFormat::kBf16, KvFormat::kFp8);
  AttentionFixture f(DecodeShape(64, 5, format), 142);
  RowMatrix out = f.Output();
  int32_t live = f.s.rows;
  ops.stream().BeginCapture();
  SparseAttentionCuda(ops.stream(), f.Args(out, &live));
  auto graph = ops.stream().EndCapture();
  REQUIRE(graph.ok());
  const auto replay = [&] {
    (*graph)->Replay(ops.stream());
    REQUIRE(ops.stream().Synchronize().ok());
    return out;
  };
  const RowMatrix before = replay();
  CHECK(f.CountWrong(before, 0x1p-8) == 0);
  const RowMatrix old_queries = f.q;
  TestRandom random(143);
  f.q.Randomize(random, f.s.rows, -2.0F, 2.0F);
  f.FillPools();
  for (int32_t r = 0; r < f.s.rows; ++r) f.SetValid(r, 128 - 25 * r, 50 * r);
  CHECK(f.CountWrong(replay(), 0x1p-8) == 0);
  for (int32_t r = 0; r < f.s.rows; ++r) f.q.CopyRow(r, old_queries, r);
  live = 2;
  CHECK(f.CountWrong(replay(), 0x1p-8) > 0);  // rows past the live ones keep what was there
  live = f.s.rows;
  CHECK(f.CountWrong(replay(), 0x1p-8) == 0);
}

TEST_CASE("few rows get few heads a cluster and many rows get many", "[ops][sparse_attention]") {
  constexpr int32_t kMultiprocessors = 132;
  CHECK(sm90::SelectDecodeHeads(1, 64, kMultiprocessors) == 8);
  // One wave of either: the fewer heads, the sooner it ends; two waves of them take longer than one of all.
  CHECK(sm90::SelectDecodeHeads(32, 64, kMultiprocessors) == 32);
  CHECK(sm90::SelectDecodeHeads(48, 64, kMultiprocessors) == 64);
  CHECK(sm90::SelectDecodeHeads(768, 64, kMultiprocessors) == 64);
  CHECK(sm90::SelectDecodeHeads(768, 16, kMultiprocessors) == 16);
  CHECK(sm90::SelectDecodeHeads(768, 24, kMultiprocessors) == 8);
}

}  // namespace
}  // namespace firesteel
