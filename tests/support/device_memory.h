// Copies between a test and the memory of its device, which the host may not read in place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/device.h"

namespace firesteel {

// Waits for everything enqueued before.
template <typename T>
std::vector<T> Download(Device& device, const T* data, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  device.stream().CopyToHost(values.data(), data, count * static_cast<int64_t>(sizeof(T)));
  const Status status = device.stream().Synchronize();
  FIRESTEEL_CHECK(status.ok(), status.message());
  return values;
}

template <typename T>
void Upload(Device& device, T* data, const T& value) {
  device.stream().CopyToDevice(data, &value, sizeof(T));
}

// Device memory of a test's own, zero-filled.
template <typename T>
class DeviceBuffer {
 public:
  DeviceBuffer(Device& device, int64_t count)
      : device_(device),
        count_(count),
        data_(static_cast<T*>(device.Allocate(count * static_cast<int64_t>(sizeof(T))))) {
    FIRESTEEL_CHECK(data_ != nullptr, "the device is out of memory");
  }
  ~DeviceBuffer() { device_.Free(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() { return data_; }
  std::vector<T> Read() const { return Download(device_, data_, count_); }

 private:
  Device& device_;
  int64_t count_;
  T* data_;
};

}  // namespace firesteel
