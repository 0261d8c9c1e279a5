// Opens one of the back ends by its option value.
#pragma once

#include <memory>

#include "engine/api/engine_options.h"
#include "kernels/core/device.h"

namespace firesteel {

// `threads` == 0 takes one worker per core (CPU). The first visible GPU is taken for kCuda; the error says whether its
// module, the driver or the GPU is missing.
Result<std::unique_ptr<Device>> OpenDevice(DeviceKind kind, int threads);

}  // namespace firesteel
