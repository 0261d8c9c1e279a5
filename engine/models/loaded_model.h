// A checkpoint brought up as a target and its drafter, whatever the architecture.
#pragma once

#include <memory>
#include <string>

#include "engine/api/engine_options.h"
#include "engine/drafters/drafter.h"
#include "engine/models/model_config.h"
#include "engine/models/target_model.h"
#include "engine/weights/safetensors.h"

namespace firesteel {

struct LoadedModel {
  ModelConfig config;
  std::unique_ptr<Checkpoint> checkpoint;  // mapped weights; outlives the models below
  std::unique_ptr<TargetModel> target;
  std::unique_ptr<Drafter> drafter;
};

// Loads options.model_dir onto `device`. `arena` receives weights that cannot be read in place.
Result<LoadedModel> LoadModel(const EngineOptions& options, Device& device, DeviceArena& arena);

}  // namespace firesteel
