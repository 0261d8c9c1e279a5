// A validated generation, whichever front end it came from: HTTP routes and the offline commands end here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/api/sampling_params.h"

namespace firesteel {

inline constexpr size_t kMaxStopStrings = 16;

struct GenerationCall {
  std::vector<int32_t> prompt_ids;
  std::vector<std::string> stop;  // each non-empty, at most kMaxStopStrings
  SamplingParams sampling;
};

}  // namespace firesteel
