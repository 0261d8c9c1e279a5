#include "kernels/core/arena.h"

namespace firesteel {

DeviceArena::~DeviceArena() {
  for (const Buffer& buffer : buffers_) device_.Free(buffer.data);
}

void* DeviceArena::Carve(const std::string& name, int64_t bytes) {
  FIRESTEEL_CHECK(!sealed_, "buffer '" + name + "' was requested after start-up");
  FIRESTEEL_CHECK(bytes >= 0, "buffer '" + name + "' has a negative size");
  void* data = device_.Allocate(bytes);
  FIRESTEEL_CHECK(data != nullptr,
                  "out of memory for buffer '" + name + "' of " + std::to_string(bytes) + " bytes");
  buffers_.push_back({name, data, bytes});
  total_bytes_ += bytes;
  return data;
}

}  // namespace firesteel
