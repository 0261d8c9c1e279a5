#include "engine/api/step_bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "engine/exec/rank_state.h"
#include "engine/exec/step_timer.h"
#include "kernels/core/parallel_for.h"
#include "kernels/cpu/gemm_rows.h"

namespace firesteel {
namespace {

template <typename Body>
double BestSeconds(int repeats, Body body) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

// Bytes read plus bytes written per second by all workers together, far beyond any cache.
double MeasureCopyGbps(WorkerPool& pool) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  std::vector<std::byte> source(kBytes, std::byte{1});
  std::vector<std::byte> target(kBytes);
  const double seconds = BestSeconds(5, [&] {
    pool.Run(kBytes, int64_t{1} << 20, [&](int64_t begin, int64_t end, WorkerScratch&) {
      std::memcpy(target.data() + begin, source.data() + begin, static_cast<size_t>(end - begin));
    });
  });
  return 2.0 * static_cast<double>(kBytes) / seconds * 1e-9;
}

// The engine's own inner kernel on operands that stay in cache: the ceiling its matrix products can reach.
double MeasureGflops(WorkerPool& pool) {
  constexpr int32_t kIn = 1024;
  constexpr int32_t kOut = 16;
  constexpr int64_t kRows = 24;
  constexpr int64_t kLoops = 512;
  const std::vector<float> weights(static_cast<size_t>(kIn * kOut), 0.5F);
  const std::vector<float> input(static_cast<size_t>(kRows * kIn), 0.25F);
  Weight weight;
  weight.data = weights.data();
  weight.dtype = DType::kF32;
  weight.out = kOut;
  weight.in = kIn;
  const double seconds = BestSeconds(5, [&] {
    pool.Run(kLoops, 1, [&](int64_t begin, int64_t end, WorkerScratch& scratch) {
      const float* x[kRows];
      float* y[kRows];
      float* out = scratch.Floats(kRows * kOut);
      for (int64_t r = 0; r < kRows; ++r) {
        x[r] = input.data() + r * kIn;
        y[r] = out + r * kOut;
      }
      for (int64_t i = begin; i < end; ++i) GemmRows(weight, x, y, kRows, 0, kOut, scratch);
    });
  });
  return 2.0 * kIn * kOut * kRows * static_cast<double>(kLoops) / seconds * 1e-9;
}

int64_t PassBytes(const WeightTraffic& t, int32_t rows) {
  return t.dense_bytes + t.expert_bytes * std::min(rows * t.experts_per_row, t.experts);
}

Status CheckBench(const StepBenchOptions& bench, const RankInfo& info) {
  const int32_t longest = info.model.max_model_len - info.cache.lookahead_tokens;
  if (bench.context < 1 || bench.context > longest) {
    return InvalidArgument("context is " + std::to_string(bench.context) + ", needs 1.." +
                           std::to_string(longest));
  }
  for (const int32_t sequences : bench.sequences) {
    if (sequences < 1 || sequences > info.limits.max_sequences) {
      return InvalidArgument("sequences is " + std::to_string(sequences) + ", needs 1.." +
                             std::to_string(info.limits.max_sequences) + " (max-sequences)");
    }
  }
  for (const int32_t drafts : bench.drafts) {
    if (drafts < 0 || drafts > info.draft_length) {
      return InvalidArgument("drafts is " + std::to_string(drafts) + ", needs 0.." +
                             std::to_string(info.draft_length) + " (draft-length)");
    }
  }
  return Status::Ok();
}

}  // namespace

Result<StepBenchReport> RunStepBench(const EngineOptions& options, const StepBenchOptions& bench) {
  FIRESTEEL_ASSIGN_OR_RETURN(std::unique_ptr<RankState> state, RankState::Create(options));
  const RankInfo& info = state->info();
  FIRESTEEL_RETURN_IF_ERROR(CheckBench(bench, info));
  StepBenchReport report;
  report.threads = info.model.threads;
  report.context = bench.context;
  {
    // Ceilings first, on a pool of their own that is gone before steps are timed.
    WorkerPool pool(report.threads, size_t{1} << 20);
    report.copy_gbps = MeasureCopyGbps(pool);
    report.gflops = MeasureGflops(pool);
  }
  std::vector<int32_t> drafts = bench.drafts;
  for (int32_t k = 0; bench.drafts.empty() && k <= info.draft_length; ++k) drafts.push_back(k);

  const WeightTraffic target = state->target().weight_traffic();
  const WeightTraffic draft = state->drafter().weight_traffic();
  StepTimer timer(*state, bench.context);
  for (const int32_t sequences : bench.sequences) {
    for (const int32_t k : drafts) {
      FIRESTEEL_ASSIGN_OR_RETURN(const StepTimer::Sample sample,
                                 timer.Time(sequences, k, bench.repeats));
      StepBenchRow row;
      row.sequences = sequences;
      row.drafts = k;
      row.step_us = sample.step_us;
      row.target_us = sample.target_us;
      row.draft_us = sample.step_us - sample.target_us;
      const int32_t rows = sequences * (k + 1);
      row.weight_bytes = PassBytes(target, rows);
      row.draft_weight_bytes = PassBytes(draft, sequences * state->drafter().spec().block_rows);
      const double bytes_per_us = report.copy_gbps * 1e3;
      row.target_ratio = row.target_us / (static_cast<double>(row.weight_bytes) / bytes_per_us);
      if (info.draft_length > 0) {
        row.draft_ratio =
            row.draft_us / (static_cast<double>(row.draft_weight_bytes) / bytes_per_us);
      }
      const double flop = 2.0 * rows *
                          static_cast<double>(target.dense_parameters +
                                              target.expert_parameters * target.experts_per_row);
      row.flop_share = flop / (row.target_us * 1e3) / report.gflops;
      report.rows.push_back(row);
    }
  }
  return report;
}

}  // namespace firesteel
