// Measures what a decode step costs on this machine: the figures that `firesteel bench step` prints beside the floor that the
// machine's own ceilings set. Called on any thread, one call at a time per device.
//
// 1. A step is the real step program as captured graphs: the whole step, its target half (metadata, target pass and
//    verification) and its draft half (commit and proposal) on its own.
// 2. Its bytes count what must be read once: weights, with the experts that some row chose as measured in the same run; the
//    window, index keys and all-entry lists of a sequence; chosen entries of a row. Activations are not counted.
// 3. The ceilings are measured in the same run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/api/engine_options.h"
#include "kernels/core/status.h"

namespace firesteel {

// A model of random weights in place of a checkpoint: one of `tp` tensor-parallel ranks, without its collectives.
struct SyntheticShape {
  std::string name;    // "v4-flash", or "tiny" for tests; empty: the checkpoint of EngineOptions
  int32_t tp = 1;      // heads, expert columns and vocabulary are cut over so many ranks
  int32_t layers = 0;  // of the target; 0: all
};

struct StepBenchOptions {
  std::vector<int32_t> sequences = {1};
  std::vector<int32_t> drafts;            // empty: 0..K with a checkpoint, K without
  std::vector<int32_t> contexts = {256};  // positions that each sequence holds
  int32_t repeats = 20;                   // timed samples of a figure
  SyntheticShape synthetic;
  // Cache memory with synthetic weights; sequences share blocks where it is less than they need.
  int64_t cache_bytes = int64_t{80} << 30;
};

struct StepBenchMachine {
  std::string device;
  double copy_gbps = 0.0;  // large copy, bytes read + bytes written per second
  // Multiply-adds, counted twice: fp32 ones of the CPU column's inner kernel, bf16 ones of a GPU's matrix units. 0: not measured.
  double gflops = 0.0;
  int32_t threads = 0;
  std::string cache_dtype;
  std::string activations;
};

// One half of a step. All zero for the draft half without a drafter.
struct StepBenchPart {
  double us = 0.0;  // median
  int64_t weight_bytes = 0;
  int64_t cache_bytes = 0;
  double distinct_experts = 0.0;  // mean over the layers
  double floor_us = 0.0;          // all bytes at copy_gbps
  double ratio = 0.0;             // us / floor_us
};

struct StepBenchRow {
  int32_t sequences = 0;
  int32_t drafts = 0;  // verified drafts per sequence; target rows = sequences * (drafts + 1)
  int32_t context = 0;
  double cache_share = 1.0;  // distinct context blocks over those that the sequences' tables list
  double step_us = 0.0;  // median of a whole step from the plan's upload to the results on the host
  double prepare_us = 0.0;  // of both halves' metadata
  StepBenchPart target;
  StepBenchPart draft;
  double flop_share = 0.0;  // target FLOP / target.us over the measured FLOP rate; 0 without one
};

// Who is told while it runs: a long run that is cut short keeps what it has measured.
struct StepBenchSink {
  std::function<void(const StepBenchMachine&)> machine;
  std::function<void(const StepBenchRow&)> row;
};

// Loads or makes the model, measures, and unloads it.
Status RunStepBench(const EngineOptions& options, const StepBenchOptions& bench,
                    const StepBenchSink& sink);

}  // namespace firesteel
