// Opens one of the back ends of this build by its option value.
#pragma once

#include <memory>

#include "engine/api/engine_options.h"
#include "kernels/core/device.h"

namespace firesteel {

// Unsupported says which back ends this build has. `threads` == 0 takes one worker per core (CPU).
Result<std::unique_ptr<Device>> OpenDevice(DeviceKind kind, int threads);

}  // namespace firesteel
