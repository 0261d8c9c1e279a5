// The CPU device under test: a few workers and their stream.
#pragma once

#include <memory>

#include "kernels/core/device.h"
#include "kernels/cpu/cpu_device.h"

namespace firesteel {

class CpuFixture {
 public:
  explicit CpuFixture(int threads = 2) : device_(CreateCpuDevice(threads)) {}
  Device& device() { return *device_; }
  Stream& stream() { return device_->stream(); }

 private:
  std::unique_ptr<Device> device_;
};

}  // namespace firesteel
