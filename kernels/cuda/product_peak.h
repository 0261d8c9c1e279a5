// The highest rate of bf16 products that a GPU's matrix units reach, measured: what benchmarks hold operations against.
#pragma once

#include "kernels/core/status.h"
#include "kernels/cuda/cuda_stream.h"

namespace firesteel {

// In GFLOP/s, a multiply-add counting twice; some tens of milliseconds. REQUIRES: nothing else runs on the GPU.
Result<double> MeasureProductPeak(CudaStream& stream);

// Enqueues `rounds` rounds on every multiprocessor, operands in registers and shared memory, and says how many operations
// they are. `sink` [1] is never written: it keeps the results from being left out.
double EnqueueProducts(cudaStream_t stream, int multiprocessors, int rounds, float* sink);

namespace sm90 {
// The same with the instructions of Hopper.
double EnqueueProducts(cudaStream_t stream, int multiprocessors, int rounds, float* sink);
}  // namespace sm90

}  // namespace firesteel
