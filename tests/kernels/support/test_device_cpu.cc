#include "kernels/cpu/cpu_device.h"
#include "tests/kernels/support/test_device.h"

namespace firesteel {

std::unique_ptr<Device> OpenTestDevice(int threads) { return CreateCpuDevice(threads); }

const KernelTable& KernelsUnderTest() { return CpuKernels(); }

}  // namespace firesteel
