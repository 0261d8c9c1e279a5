// One accepted piece of work for the engine: token ids in, token ids out.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/api/sampling_params.h"
#include "engine/plan/ids.h"

namespace firesteel {

struct Request {
  RequestId id;                 // unique among live requests
  std::vector<int32_t> prompt;  // at least one id, each in [0, vocab)
  std::vector<int32_t>
      stop_tokens;  // end tokens; the engine stops after emitting one (unless ignore_eos)
  SamplingParams sampling;
};

}  // namespace firesteel
