// Builds the DeepSeek-V4 target and the drafter its checkpoint carries.
#pragma once

#include "engine/models/loaded_model.h"

namespace firesteel {

Status CreateDeepseek(const EngineOptions& options, Device& device, DeviceArena& arena,
                      LoadedModel* model);

}  // namespace firesteel
