// One NVIDIA GPU as a device: its memory, one stream, CUDA graphs.
#pragma once

#include <memory>

#include "kernels/core/device.h"

namespace firesteel {

// `ordinal` is the GPU's number among the visible ones. The error says what is missing: a driver, a GPU, or one that these
// kernels were compiled for (compute capability 9.0 or 10.x).
Result<std::unique_ptr<Device>> CreateCudaDevice(int ordinal);

// Complete: a test fails on a null row.
const KernelTable& CudaKernels();

}  // namespace firesteel
