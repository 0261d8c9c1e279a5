#include "engine/api/step_bench.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "engine/exec/machine_ceilings.h"
#include "engine/exec/rank_state.h"
#include "engine/exec/step_timer.h"
#include "kernels/cpu/cpu_device.h"

namespace firesteel {
namespace {

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
    // Ceilings first, on workers of their own that are gone before steps are timed.
    const std::unique_ptr<Device> machine = CreateCpuDevice(report.threads);
    FIRESTEEL_ASSIGN_OR_RETURN(report.copy_gbps, MeasureCopyGbps(*machine));
    report.gflops = MeasureGflops(PoolOf(machine->stream()));
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
