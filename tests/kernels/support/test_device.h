// The back end that the operation tests of this binary run on, chosen by the file that is linked: test_device_cpu.cc or
// test_device_cuda.cc.
//
// Its operations have finished when they return, and they read and write what the test's vectors and local variables
// hold. In a CUDA binary that takes the allocator and the stack of managed_memory_main.cc; constants with static storage
// stay out of a GPU's reach and must not be passed to an operation.
#pragma once

#include <memory>

#include "kernels/core/device.h"

namespace firesteel {

// `threads`: CPU workers. Aborts the test program with the error's text when there is no such device.
std::unique_ptr<Device> OpenTestDevice(int threads);

// The column of the kernel table that is under test; needs no device.
const KernelTable& KernelsUnderTest();

}  // namespace firesteel
