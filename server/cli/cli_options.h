// What the command line asked for, after parsing and validation.
#pragma once

#include <cstdint>
#include <string>

#include "engine/api/engine_options.h"
#include "engine/api/kernel_bench.h"
#include "engine/api/sampling_params.h"
#include "engine/api/step_bench.h"

namespace firesteel {

enum class Command { kServe, kGenerate, kEval, kBenchStep, kBenchKernels };

inline constexpr int32_t kAnyGrpcPort = -1;

struct ServeOptions {
  std::string host = "127.0.0.1";
  int32_t http_port = 8000;       // 0: any free port, printed at start
  int32_t grpc_port = 0;          // 0: no gRPC; kAnyGrpcPort: any free port, printed at start
  std::string served_model_name;  // empty: the last component of the model directory
  int32_t drain_timeout_s = 30;
  int64_t max_body_bytes = 32 << 20;
  bool access_log = true;  // one line per HTTP request
};

struct OfflineOptions {
  std::string input;        // path, or "-" for standard input
  SamplingParams sampling;  // of lines that set nothing
};

struct CliOptions {
  Command command = Command::kServe;
  EngineOptions engine;
  ServeOptions serve;
  OfflineOptions offline;
  StepBenchOptions step_bench;
  KernelBenchOptions kernel_bench;
};

}  // namespace firesteel
