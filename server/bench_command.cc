#include "server/bench_command.h"

#include <spdlog/spdlog.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

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

// Absent where a figure was not measured.
nlohmann::ordered_json Measured(double value) {
  return value > 0.0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json ToJson(const KernelBenchRow& row) {
  nlohmann::ordered_json json = {{"family", KernelFamilyName(row.family)}, {"case", row.name}};
  if (!row.cache_dtype.empty()) json["kv_cache_dtype"] = row.cache_dtype;
  if (!row.weight_dtype.empty()) json["weight_dtype"] = row.weight_dtype;
  json["activations"] = row.activations;
  for (const auto& [name, value] : row.parameters) json[name] = value;
  if (!row.skipped.empty()) {
    json["skipped"] = row.skipped;
    return json;
  }
  json["bytes"] = std::llround(row.bytes);
  json["flop"] = std::llround(row.flop);
  json["sets"] = row.sets;
  json["launches"] = row.launches;
  json["nodes_per_launch"] = row.nodes_per_launch;
  json["replays"] = row.replays;
  json["repeats"] = row.repeats;
  json["median_us"] = row.median_us;
  json["min_us"] = row.min_us;
  json["max_us"] = row.max_us;
  json["floor_us"] = row.floor_us;
  json["floor"] = row.flop_bound ? "flop" : "bytes";
  json["ratio"] = row.ratio;
  return json;
}

std::string SizesOf(const KernelBenchRow& row) {
  std::string text;
  for (const auto& [name, value] : row.parameters) {
    if (!text.empty()) text += " ";
    text += name + "=" + std::to_string(value);
  }
  return text;
}

void PrintMachine(const KernelBenchMachine& machine) {
  const nlohmann::ordered_json json = {{"device", machine.device},
                                       {"copy_gbps", machine.copy_gbps},
                                       {"gflops", Measured(machine.gflops)}};
  std::printf("%s\n", json.dump().c_str());
  std::fflush(stdout);
  const std::string compute = machine.gflops > 0.0
                                  ? std::to_string(std::llround(machine.gflops)) + " GFLOP/s"
                                  : "compute ceiling not measured";
  std::fprintf(stderr,
               "%s, copy %.1f GB/s (read + written), %s\n"
               "%-15s %-16s %10s %10s %10s %10s %5s %7s %9s %9s %9s  %s\n",
               machine.device.c_str(), machine.copy_gbps, compute.c_str(), "family", "case",
               "median us", "min us", "max us", "floor us", "floor", "ratio", "MB", "GB/s",
               "GFLOP/s", "sizes");
}

void PrintRow(const KernelBenchRow& row) {
  std::printf("%s\n", ToJson(row).dump().c_str());
  // Each row at once: what was measured survives a run that is cut short.
  std::fflush(stdout);
  const std::string sizes = SizesOf(row);
  if (!row.skipped.empty()) {
    std::fprintf(stderr, "%-15s %-16s skipped: %s  %s\n", KernelFamilyName(row.family),
                 row.name.c_str(), row.skipped.c_str(), sizes.c_str());
    return;
  }
  std::fprintf(stderr, "%-15s %-16s %10.2f %10.2f %10.2f %10.2f %5s %7.2f %9.3f %9.1f %9.1f  %s\n",
               KernelFamilyName(row.family), row.name.c_str(), row.median_us, row.min_us,
               row.max_us, row.floor_us, row.flop_bound ? "flop" : "bytes", row.ratio,
               row.bytes * 1e-6, row.bytes / row.median_us * 1e-3, row.flop / row.median_us * 1e-3,
               sizes.c_str());
}

}  // namespace

int RunKernelBenchCommand(const CliOptions& options) {
  const Status status = RunKernelBench(options.kernel_bench, {PrintMachine, PrintRow});
  if (status.ok()) return kExitOk;
  spdlog::error("{}", status.message());
  return kExitFailure;
}

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
