// The fields of a checkpoint's config.json that every architecture has, and the document itself for its own parser.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/status.h"

namespace firesteel {

struct ModelConfig {
  std::string path;          // of config.json, for messages
  std::string text;          // the JSON document
  std::string architecture;  // architectures[0]
  std::vector<int32_t> eos_tokens;
};

// Reads DIR/config.json.
Result<ModelConfig> ReadModelConfig(const std::string& model_dir);

}  // namespace firesteel
