// Where the engine tests of a binary run and what they read.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/api/engine_options.h"

namespace firesteel {

// Chosen by the file that is linked: engine_device_cpu.cc or engine_device_cuda.cc.
DeviceKind TestDeviceKind();

// Greedy reference cases whose drafts hang on a tie within the rounding of fp32, so that this device may propose other
// drafts than the reference. Their text must be equal all the same.
struct DraftTie {
  std::string file;
  size_t index;
};
std::vector<DraftTie> DraftTies();

// The folder that holds configs/demo-v4 and tests/fixtures: the current one if it does, so that binaries can be carried to
// another machine, else the source tree they were built from.
std::string TestRoot();

}  // namespace firesteel
