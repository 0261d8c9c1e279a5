// The architectures this engine serves: an explicit table, so that it can be searched and nothing is dropped at link time.
#pragma once

#include <string>

#include "engine/models/loaded_model.h"

namespace firesteel {

// Fills target and drafter of a model whose config and checkpoint are loaded.
using ModelFactory = Status (*)(const EngineOptions& options, Device& device, DeviceArena& arena,
                                LoadedModel* model);

// Unsupported names the architecture found and those known.
Result<ModelFactory> FindModelFactory(const std::string& architecture);

}  // namespace firesteel
