// What a machine can do at best, measured: the denominators of every benchmark's ratios. Called where nothing else runs.
#pragma once

#include "kernels/core/device.h"
#include "kernels/core/parallel_for.h"

namespace firesteel {

// Bytes read plus bytes written per second of a copy far beyond any cache, in GB/s; the error is the device's.
Result<double> MeasureCopyGbps(Device& device);

// fp32 multiply-adds of the CPU column's own inner kernel on operands that stay in cache, all workers together: the rate that
// its matrix products can reach.
double MeasureGflops(WorkerPool& pool);

}  // namespace firesteel
