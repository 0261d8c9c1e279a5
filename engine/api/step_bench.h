// Measures what a step costs on this machine: the table that `--draft-length auto` decides from, and the figures that
// `firesteel bench step` prints beside the machine's own ceilings.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/api/engine_options.h"
#include "kernels/core/status.h"

namespace firesteel {

struct StepBenchRow {
  int32_t sequences = 0;
  int32_t drafts = 0;        // verified drafts per sequence; rows = sequences * (drafts + 1)
  double step_us = 0.0;      // the whole step: verify and propose
  double target_us = 0.0;    // the step without proposing
  double draft_us = 0.0;     // step_us - target_us
  int64_t weight_bytes = 0;  // weights that the target rows must read at least once
  int64_t draft_weight_bytes = 0;
  double target_ratio = 0.0;  // target_us / (weight_bytes / read bandwidth)
  double draft_ratio = 0.0;
  double flop_share = 0.0;  // target FLOP / target_us over the measured FLOP rate
};

struct StepBenchReport {
  double copy_gbps = 0.0;  // large copy, bytes read + bytes written per second
  double gflops =
      0.0;  // fp32 multiply-adds of the engine's own inner kernel on cached data, all workers
  int32_t threads = 0;
  int32_t context = 0;  // positions that each sequence holds when it is measured
  std::vector<StepBenchRow> rows;
};

struct StepBenchOptions {
  std::vector<int32_t> sequences = {1};
  std::vector<int32_t> drafts;  // empty: 0..K
  int32_t context = 256;
  int32_t repeats = 20;
};

// Loads the model, measures, and unloads it.
Result<StepBenchReport> RunStepBench(const EngineOptions& options, const StepBenchOptions& bench);

}  // namespace firesteel
