// Collapse and expansion of a half-layer's hyper-connections: what a layer adds around each of its two sublayers.
#include <string>
#include <utility>
#include <vector>

#include "engine/exec/bench/case_buffers.h"
#include "engine/exec/bench/kernel_families.h"
#include "kernels/core/launch.h"
#include "kernels/ops/hyper_mix/hyper_mix.h"

namespace firesteel {
namespace {

constexpr int32_t kSinkhornIterations = 20;

KernelBenchRow NewMhcRow(CaseRunner& runner, const char* name, int32_t rows) {
  const KernelBenchShapes& s = runner.shapes();
  KernelBenchRow row = runner.NewRow(KernelFamily::kMhc, name);
  row.cache_dtype.clear();
  row.parameters = {{"rows", rows}, {"hidden", s.hidden}, {"streams", s.streams}};
  return row;
}

Status BenchCollapse(CaseRunner& runner, int32_t rows) {
  const KernelBenchShapes& s = runner.shapes();
  const int32_t outputs = (2 + s.streams) * s.streams;
  const double activation = runner.ActivationBytes();
  KernelBenchRow row = NewMhcRow(runner, "collapse", rows);
  // The streams and the mixing outputs in, the collapsed row, post and comb out; the norm's weight, base and scales once.
  row.bytes = rows * ((s.streams + 1.0) * s.hidden * activation + 4.0 * outputs +
                      4.0 * s.streams * (1.0 + s.streams)) +
              2.0 * s.hidden + 4.0 * (outputs + 3);
  // A square and a product with its sum for every value of the streams.
  row.flop = 4.0 * rows * s.streams * s.hidden;
  const double set_bytes = rows * static_cast<double>(s.streams) * s.hidden * activation;
  row.sets = runner.SetsFor(row.bytes, set_bytes, set_bytes);
  if (row.sets == 0) {
    runner.Skip(std::move(row), set_bytes, set_bytes);
    return Status::Ok();
  }
  CaseBuffers buffers(runner.device());
  const DType dtype = runner.options().activations;
  HyperCollapseArgs args{};
  args.mix = static_cast<const float*>(buffers.RandomRows("mix", rows, outputs, DType::kF32).data);
  args.params.base =
      static_cast<const float*>(buffers.RandomRows("base", 1, outputs, DType::kF32).data);
  args.params.scale = buffers.Upload("scale", std::vector<float>{1.0F, 1.0F, 1.0F});
  args.params.streams = s.streams;
  args.params.sinkhorn_iterations = kSinkhornIterations;
  args.params.eps = args.params.norm_eps = 1e-6F;
  args.weight =
      static_cast<const uint16_t*>(buffers.RandomRows("weight", 1, s.hidden, DType::kBf16).data);
  args.out = buffers.RandomRows("out", rows, s.hidden, dtype);
  args.post = buffers.Zeros<float>("post", int64_t{rows} * s.streams);
  args.comb = buffers.Zeros<float>("comb", int64_t{rows} * s.streams * s.streams);
  args.live = buffers.Upload("live", std::vector<int32_t>{rows});
  args.rows = rows;
  args.hidden = s.hidden;
  std::vector<HyperCollapseArgs> sets(static_cast<size_t>(row.sets), args);
  for (HyperCollapseArgs& set : sets) {
    set.x = buffers.RandomRows("x", rows, int64_t{s.streams} * s.hidden, dtype);
  }
  const KernelTable& ops = runner.device().kernels();
  return runner.Run(std::move(row), [&](Stream& stream, int32_t set) {
    Launch(stream, ops.hyper_collapse, sets[static_cast<size_t>(set)]);
  });
}

Status BenchExpand(CaseRunner& runner, int32_t rows) {
  const KernelBenchShapes& s = runner.shapes();
  const double activation = runner.ActivationBytes();
  KernelBenchRow row = NewMhcRow(runner, "expand", rows);
  // The streams in and out, the sublayer's output, post and comb in.
  row.bytes = rows * ((2.0 * s.streams + 1.0) * s.hidden * activation +
                      4.0 * s.streams * (1.0 + s.streams));
  row.flop = 2.0 * rows * s.streams * (1.0 + s.streams) * s.hidden;
  const double set_bytes = rows * (1.0 + s.streams) * s.hidden * activation;
  row.sets = runner.SetsFor(row.bytes, set_bytes, 0.0);
  if (row.sets == 0) {
    runner.Skip(std::move(row), set_bytes, 0.0);
    return Status::Ok();
  }
  CaseBuffers buffers(runner.device());
  const DType dtype = runner.options().activations;
  // Rows of comb add up to at most one and post is 0: a stream that is expanded again and again must stay what it is in size.
  const int32_t pairs = s.streams * s.streams;
  HyperExpandArgs args{};
  args.post = buffers.Zeros<float>("post", int64_t{rows} * s.streams);
  args.comb = buffers.Upload("comb", std::vector<float>(static_cast<size_t>(rows * pairs),
                                                        1.0F / static_cast<float>(s.streams)));
  args.live = buffers.Upload("live", std::vector<int32_t>{rows});
  args.rows = rows;
  args.hidden = s.hidden;
  args.streams = s.streams;
  std::vector<HyperExpandArgs> sets(static_cast<size_t>(row.sets), args);
  for (HyperExpandArgs& set : sets) {
    set.x = buffers.RandomRows("x", rows, int64_t{s.streams} * s.hidden, dtype);
    set.f = buffers.RandomRows("f", rows, s.hidden, dtype);
  }
  const KernelTable& ops = runner.device().kernels();
  return runner.Run(std::move(row), [&](Stream& stream, int32_t set) {
    Launch(stream, ops.hyper_expand, sets[static_cast<size_t>(set)]);
  });
}

}  // namespace

Status BenchMhc(CaseRunner& runner) {
  for (const int32_t rows : runner.RowsOr(runner.shapes().mhc_rows)) {
    FIRESTEEL_RETURN_IF_ERROR(BenchCollapse(runner, rows));
    FIRESTEEL_RETURN_IF_ERROR(BenchExpand(runner, rows));
  }
  return Status::Ok();
}

}  // namespace firesteel
