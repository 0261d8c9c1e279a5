#include "engine/exec/bench/case_runner.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

namespace firesteel {
namespace {

// Long enough that starting a graph and waiting for it (tens of microseconds on a GPU) do not show.
constexpr double kSampleUs = 10e3;
constexpr int32_t kMaxSets = 1024;
// A graph of a few short launches would measure the gap between graphs.
constexpr int32_t kMinGpuLaunches = 32;

Result<double> ReplayUs(Stream& stream, Graph& graph, int32_t replays) {
  const auto start = std::chrono::steady_clock::now();
  for (int32_t i = 0; i < replays; ++i) graph.Replay(stream);
  FIRESTEEL_RETURN_IF_ERROR(stream.Synchronize());
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace

KvFormat CaseRunner::AttentionFormat() const {
  switch (options_.cache_dtype) {
    case CacheDtype::kFp32: return KvFormat::kF32;
    case CacheDtype::kBf16: return KvFormat::kBf16;
    case CacheDtype::kFp8: return KvFormat::kFp8;
  }
  return KvFormat::kF32;
}

KvFormat CaseRunner::IndexFormat() const {
  const KvFormat format = AttentionFormat();
  return format == KvFormat::kFp8 ? KvFormat::kFp8Index : format;
}

int32_t CaseRunner::SetsFor(double touched, double allocated, double shared) const {
  const double room = static_cast<double>(options_.memory_limit_bytes) - shared;
  const double wanted = std::clamp(static_cast<double>(options_.rotate_bytes) / touched + 1.0, 2.0,
                                   static_cast<double>(kMaxSets));
  // A set that allocates nothing of its own always fits.
  const double fitting = allocated > 0.0 ? room / allocated : (room > 0.0 ? wanted : 0.0);
  return static_cast<int32_t>(std::max(0.0, std::min(wanted, fitting)));
}

KernelBenchRow CaseRunner::NewRow(KernelFamily family, std::string name) const {
  KernelBenchRow row;
  row.family = family;
  row.name = std::move(name);
  row.cache_dtype = CacheDtypeName(options_.cache_dtype);
  row.activations = ActivationDtypeName(options_.activations);
  return row;
}

void CaseRunner::Skip(KernelBenchRow row, double allocated, double shared) {
  row.skipped = "needs " + std::to_string(static_cast<int64_t>((allocated + shared) * 1e-6)) +
                " MB, the limit is " + std::to_string(options_.memory_limit_bytes / 1000000);
  row.bytes = 0.0;
  row.flop = 0.0;
  sink_.row(row);
}

Status CaseRunner::Run(KernelBenchRow row, const Enqueue& enqueue) {
  Stream& stream = device_.stream();
  // The inputs are complete before anything is captured.
  FIRESTEEL_RETURN_IF_ERROR(stream.Synchronize());
  // Every set once eagerly: a launch that fails says so here and not as a failed capture.
  for (int32_t set = 0; set < row.sets; ++set) enqueue(stream, set);
  FIRESTEEL_RETURN_IF_ERROR(stream.Synchronize());
  row.launches = device_.reads_host_memory()
                     ? row.sets
                     : RoundUp(std::max(row.sets, kMinGpuLaunches), row.sets);
  stream.BeginCapture();
  for (int32_t i = 0; i < row.launches; ++i) enqueue(stream, i % row.sets);
  FIRESTEEL_ASSIGN_OR_RETURN(const std::unique_ptr<Graph> graph, stream.EndCapture());
  row.nodes_per_launch =
      static_cast<double>(graph->num_nodes()) / static_cast<double>(row.launches);

  FIRESTEEL_ASSIGN_OR_RETURN(double warm_us, ReplayUs(stream, *graph, 1));
  FIRESTEEL_ASSIGN_OR_RETURN(warm_us, ReplayUs(stream, *graph, 1));
  row.replays = static_cast<int32_t>(std::clamp(kSampleUs / warm_us + 1.0, 1.0, 10000.0));
  std::vector<double> samples;
  for (int32_t i = 0; i < options_.repeats; ++i) {
    FIRESTEEL_ASSIGN_OR_RETURN(const double us, ReplayUs(stream, *graph, row.replays));
    samples.push_back(us / (static_cast<double>(row.replays) * row.launches));
  }
  std::sort(samples.begin(), samples.end());
  row.repeats = options_.repeats;
  row.median_us = samples[samples.size() / 2];
  row.min_us = samples.front();
  row.max_us = samples.back();
  row.floor_us = row.bytes / machine_.copy_gbps * 1e-3;
  if (machine_.gflops > 0.0) {
    const double flop_us = row.flop / machine_.gflops * 1e-3;
    row.flop_bound = flop_us > row.floor_us;
    row.floor_us = std::max(row.floor_us, flop_us);
  }
  row.ratio = row.median_us / row.floor_us;
  sink_.row(row);
  return Status::Ok();
}

}  // namespace firesteel
