// Builds the DeepSeek-V4 target and the drafter its checkpoint carries.
#pragma once

#include "engine/models/deepseek/deepseek_config.h"
#include "engine/models/loaded_model.h"

namespace firesteel {

Status CreateDeepseek(const EngineOptions& options, Device& device, DeviceArena& arena,
                      LoadedModel* model);

// The same of random weights; model->config names no file.
Status CreateSyntheticDeepseek(const DeepseekConfig& config, const EngineOptions& options,
                               Device& device, DeviceArena& arena, LoadedModel* model);

}  // namespace firesteel
