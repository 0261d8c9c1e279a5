// What a machine can do at best, measured: the denominators of every benchmark's ratios. Called where nothing else runs.
#pragma once

#include "kernels/core/device.h"

namespace firesteel {

// Bytes read plus bytes written per second of a copy far beyond any cache, in GB/s; the error is the device's.
Result<double> MeasureCopyGbps(Device& device);

// Multiply-adds, counted twice, in GFLOP/s: on a CPU fp32 ones of the column's own inner kernel on operands that stay in cache,
// all workers together, which is the rate that its matrix products can reach; on a GPU bf16 ones of its matrix units.
Result<double> MeasureGflops(Device& device);

}  // namespace firesteel
