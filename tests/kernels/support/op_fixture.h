// The device whose operations are under test. Tests pass ordinary memory to them: see support/test_device.h.
#pragma once

#include <memory>

#include "kernels/core/device.h"
#include "tests/kernels/support/test_device.h"

namespace firesteel {

class OpFixture {
 public:
  explicit OpFixture(int threads = 2) : device_(OpenTestDevice(threads)) {}
  Device& device() { return *device_; }
  Stream& stream() { return device_->stream(); }

 private:
  std::unique_ptr<Device> device_;
};

}  // namespace firesteel
