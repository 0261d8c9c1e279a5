// All device memory of a rank, by name. Buffers are carved during start-up, never move, and are freed together.
//
// After Seal() any further request aborts: the step path allocates nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/device.h"

namespace firesteel {

class DeviceArena {
 public:
  explicit DeviceArena(Device& device) : device_(device) {}
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // Zero-filled. Aborts when the device is out of memory: the memory plan was checked before.
  void* Carve(const std::string& name, int64_t bytes);

  template <typename T>
  T* Carve(const std::string& name, int64_t count) {
    return static_cast<T*>(Carve(name, count * static_cast<int64_t>(sizeof(T))));
  }

  void Seal() { sealed_ = true; }
  int64_t total_bytes() const { return total_bytes_; }

  struct Buffer {
    std::string name;
    void* data;
    int64_t bytes;
  };
  const std::vector<Buffer>& buffers() const { return buffers_; }

 private:
  Device& device_;
  std::vector<Buffer> buffers_;
  int64_t total_bytes_ = 0;
  bool sealed_ = false;
};

}  // namespace firesteel
