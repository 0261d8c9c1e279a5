// Puts checkpoint tensors where kernels can read them: in place when the device reads host memory and the mapping is
// aligned, else copied once into the arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/core/arena.h"
#include "kernels/core/device.h"

namespace firesteel {

class WeightPlacer {
 public:
  WeightPlacer(Device& device, DeviceArena& arena) : device_(device), arena_(arena) {}

  // The returned memory lives as long as the arena and the checkpoint mapping.
  const void* Place(const std::string& name, std::span<const std::byte> data, int32_t alignment) {
    const bool aligned =
        reinterpret_cast<uintptr_t>(data.data()) % static_cast<size_t>(alignment) == 0;
    if (device_.reads_host_memory() && aligned) return data.data();
    return Copy(name, data.data(), static_cast<int64_t>(data.size()));
  }

  // A host table that kernels read (pointer arrays, rope tables): always copied.
  const void* Copy(const std::string& name, const void* data, int64_t bytes) {
    return arena_.Place(name, data, bytes);
  }

 private:
  Device& device_;
  DeviceArena& arena_;
};

}  // namespace firesteel
