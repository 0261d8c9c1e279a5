// The metric families that are a view of EngineStats. Included by this folder's .cc files only: it needs
// prometheus-cpp. Pure, callable from any thread.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "engine/api/engine.h"

namespace firesteel {

std::vector<prometheus::MetricFamily> EngineFamilies(const std::string& model_name,
                                                     const EngineStats& stats,
                                                     const ModelInfo& info);

}  // namespace firesteel
