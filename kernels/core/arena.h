// All device memory of a rank, by name. Buffers are carved during start-up, never move, and are freed together.
//
// A buffer that does not fit is not there and status() names it; the rest of start-up still runs to its end, on no memory.
// After Seal() any further request aborts: the step path allocates nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/device.h"

namespace firesteel {

class DeviceArena {
 public:
  // kCount reserves nothing: it tells what start-up would take. Its addresses are made up and must not be followed.
  enum class Use { kAllocate, kCount };

  explicit DeviceArena(Device& device, Use use = Use::kAllocate) : device_(device), use_(use) {}
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // Zero-filled. nullptr once anything did not fit.
  void* Carve(const std::string& name, int64_t bytes);

  template <typename T>
  T* Carve(const std::string& name, int64_t count) {
    return static_cast<T*>(Carve(name, count * static_cast<int64_t>(sizeof(T))));
  }

  // A buffer that holds a copy of `bytes` bytes of the host.
  void* Place(const std::string& name, const void* data, int64_t bytes);

  // ResourceExhausted with the name of the first buffer that did not fit.
  const Status& status() const { return status_; }

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
  Use use_;
  Status status_ = Status::Ok();
  std::vector<Buffer> buffers_;
  int64_t total_bytes_ = 0;
  bool sealed_ = false;
};

}  // namespace firesteel
