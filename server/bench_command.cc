#include "server/bench_command.h"

#include <spdlog/spdlog.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "server/cli/flags.h"

namespace firesteel {
namespace {

// Null where a figure was not measured.
nlohmann::ordered_json Measured(double value) {
  return value > 0.0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json ToJson(const StepBenchPart& part) {
  if (part.us == 0.0) return nullptr;
  return {{"us", part.us},
          {"weight_bytes", part.weight_bytes},
          {"distinct_experts", part.distinct_experts},
          {"cache_bytes", part.cache_bytes},
          {"floor_us", part.floor_us},
          {"ratio", part.ratio}};
}

nlohmann::ordered_json ToJson(const StepBenchRow& row) {
  return {{"sequences", row.sequences},
          {"drafts", row.drafts},
          {"context", row.context},
          {"cache_share", row.cache_share},
          {"step_us", row.step_us},
          {"target", ToJson(row.target)},
          {"draft", ToJson(row.draft)},
          {"prepare_us", row.prepare_us},
          {"flop_share", Measured(row.flop_share)}};
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

void PrintStepMachine(const StepBenchMachine& machine) {
  const nlohmann::ordered_json json = {{"device", machine.device},
                                       {"copy_gbps", machine.copy_gbps},
                                       {"gflops", Measured(machine.gflops)},
                                       {"threads", machine.threads},
                                       {"kv_cache_dtype", machine.cache_dtype},
                                       {"activations", machine.activations}};
  std::printf("%s\n", json.dump().c_str());
  std::fflush(stdout);
  std::fprintf(stderr,
               "%s, copy %.1f GB/s (read + written), cache %s, activations %s\n"
               "%5s %6s %8s %10s | %10s %9s %8s %8s %10s %6s | %9s %8s %8s %8s %9s %6s | %8s\n",
               machine.device.c_str(), machine.copy_gbps, machine.cache_dtype.c_str(),
               machine.activations.c_str(), "seqs", "drafts", "context", "step us", "target us",
               "weight MB", "experts", "cache MB", "floor us", "ratio", "draft us", "weightMB",
               "experts", "cache MB", "floor us", "ratio", "prep us");
}

void PrintStepRow(const StepBenchRow& row) {
  std::printf("%s\n", ToJson(row).dump().c_str());
  // Each row at once: what was measured survives a run that is cut short.
  std::fflush(stdout);
  const auto mega = [](int64_t bytes) { return static_cast<double>(bytes) * 1e-6; };
  std::fprintf(stderr,
               "%5d %6d %8d %10.0f | %10.0f %9.1f %8.1f %8.1f %10.1f %6.2f | %9.0f %8.1f %8.1f "
               "%8.1f %9.1f %6.2f | %8.1f\n",
               row.sequences, row.drafts, row.context, row.step_us, row.target.us,
               mega(row.target.weight_bytes), row.target.distinct_experts,
               mega(row.target.cache_bytes), row.target.floor_us, row.target.ratio, row.draft.us,
               mega(row.draft.weight_bytes), row.draft.distinct_experts,
               mega(row.draft.cache_bytes), row.draft.floor_us, row.draft.ratio, row.prepare_us);
}

}  // namespace

int RunKernelBenchCommand(const CliOptions& options) {
  const Status status = RunKernelBench(options.kernel_bench, {PrintMachine, PrintRow});
  if (status.ok()) return kExitOk;
  spdlog::error("{}", status.message());
  return kExitFailure;
}

int RunStepBenchCommand(const CliOptions& options) {
  const Status status =
      RunStepBench(options.engine, options.step_bench, {PrintStepMachine, PrintStepRow});
  if (status.ok()) return kExitOk;
  spdlog::error("{}", status.message());
  return kExitFailure;
}

}  // namespace firesteel
