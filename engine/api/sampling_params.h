// How one request picks its tokens. Validated once, immutable afterwards.
#pragma once

#include <cstdint>

#include "kernels/core/status.h"

namespace firesteel {

struct SamplingParams {
  float temperature = 1.0F;  // 0 means greedy: the first index of the largest logit
  float top_p = 1.0F;        // nucleus mass kept after temperature, (0, 1]
  uint64_t seed = 0;         // Philox key; the engine never draws a seed of its own
  int32_t max_tokens = 16;   // output tokens, end token included, at least 1
  bool ignore_eos = false;

  // InvalidArgument names the field, the value found and the values allowed.
  Status Validate() const;
};

}  // namespace firesteel
