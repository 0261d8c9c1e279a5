// Models of random weights in the shape of one tensor-parallel rank, for timing on machines that hold no checkpoint. Rank
// thread, at start-up.
#pragma once

#include <cstdint>

#include "engine/api/step_bench.h"
#include "engine/models/loaded_model.h"

namespace firesteel {

// Loads nothing: weights are random, collectives are left out. Errors name the field of `shape` that does not fit.
Result<LoadedModel> MakeSyntheticModel(const SyntheticShape& shape, const EngineOptions& options,
                                       Device& device, DeviceArena& arena);

// Random keys in every block of both cache groups. REQUIRES: `model` was made by the above and is bound to pools of these
// sizes.
void FillSyntheticCaches(const LoadedModel& model, Device& device, int32_t context_blocks,
                         int32_t window_blocks);

}  // namespace firesteel
