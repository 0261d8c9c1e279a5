// What the command line asked for, after parsing and validation.
#pragma once

#include <cstdint>
#include <string>

#include "engine/api/engine_options.h"
#include "engine/api/sampling_params.h"

namespace firesteel {

enum class Command { kServe, kGenerate, kEval };

struct ServeOptions {
  std::string host = "127.0.0.1";
  int32_t http_port = 8000;       // 0: any free port, printed at start
  std::string served_model_name;  // empty: the last component of the model directory
  int32_t drain_timeout_s = 30;
  int64_t max_body_bytes = 32 << 20;
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
};

}  // namespace firesteel
