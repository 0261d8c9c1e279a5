// Opens a GPU through the CUDA module, which is loaded when it is first asked for: a program on a machine without the
// driver or the CUDA libraries starts all the same. Called by whoever creates a rank, on any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/core/status.h"

namespace firesteel {

// The module is looked for beside the program, in ../lib, then on the loader's path. The error is one line that names the
// file, the loader's or CUDA's own words, and what to do.
Result<std::unique_ptr<Device>> OpenCudaDevice(int32_t ordinal);

// The same for a module called `file` in one of `folders`, else on the loader's path. The first file that exists is the
// one that must load: an unusable module is an error, not a reason to look further.
Result<std::unique_ptr<Device>> OpenCudaDeviceIn(const std::vector<std::string>& folders,
                                                 const std::string& file, int32_t ordinal);

}  // namespace firesteel
