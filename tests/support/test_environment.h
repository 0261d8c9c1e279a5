// Where the engine tests of a binary run and what they read.
#pragma once

#include <string>

#include "engine/api/engine_options.h"

namespace firesteel {

// Chosen by the file that is linked: engine_device_cpu.cc or engine_device_cuda.cc.
DeviceKind TestDeviceKind();

// The folder that holds configs/demo-v4 and tests/fixtures: the current one if it does, so that binaries can be carried to
// another machine, else the source tree they were built from.
std::string TestRoot();

}  // namespace firesteel
