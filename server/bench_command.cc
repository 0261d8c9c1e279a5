#include "server/bench_command.h"

#include <spdlog/spdlog.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "server/cli/flags.h"

namespace firesteel {
namespace {

nlohmann::ordered_json ToJson(const StepBenchRow& row) {
  return {{"sequences", row.sequences},
          {"drafts", row.drafts},
          {"step_us", row.step_us},
          {"target_us", row.target_us},
          {"draft_us", row.draft_us},
          {"weight_bytes", row.weight_bytes},
          {"draft_weight_bytes", row.draft_weight_bytes},
          {"target_over_read_time", row.target_ratio},
          {"draft_over_read_time", row.draft_ratio},
          {"flop_share", row.flop_share}};
}

}  // namespace

int RunStepBenchCommand(const CliOptions& options) {
  const Result<StepBenchReport> report = RunStepBench(options.engine, options.step_bench);
  if (!report.ok()) {
    spdlog::error("{}", report.status().message());
    return kExitFailure;
  }
  const nlohmann::ordered_json machine = {{"copy_gbps", report->copy_gbps},
                                          {"gflops", report->gflops},
                                          {"threads", report->threads},
                                          {"context", report->context}};
  std::printf("%s\n", machine.dump().c_str());
  std::fprintf(stderr,
               "copy %.1f GB/s (read + written), %.1f GFLOP/s, %d threads, context %d\n"
               "%9s %6s %10s %10s %10s %9s %12s %11s %10s\n",
               report->copy_gbps, report->gflops, report->threads, report->context, "sequences",
               "drafts", "step us", "target us", "draft us", "MB read", "x read time", "x (draft)",
               "FLOP share");
  for (const StepBenchRow& row : report->rows) {
    std::printf("%s\n", ToJson(row).dump().c_str());
    std::fprintf(stderr, "%9d %6d %10.0f %10.0f %10.0f %9.2f %12.2f %11.2f %10.2f\n", row.sequences,
                 row.drafts, row.step_us, row.target_us, row.draft_us,
                 static_cast<double>(row.weight_bytes) * 1e-6, row.target_ratio, row.draft_ratio,
                 row.flop_share);
  }
  return kExitOk;
}

}  // namespace firesteel
