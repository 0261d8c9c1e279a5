#include "kernels/core/arena.h"

#include "kernels/core/math.h"

namespace firesteel {

namespace {

// Where made-up addresses begin, and what every buffer is aligned to.
constexpr int64_t kFirstCounted = int64_t{1} << 20;
constexpr int64_t kAlignment = 256;

}  // namespace

DeviceArena::~DeviceArena() {
  if (use_ == Use::kCount) return;
  for (const Buffer& buffer : buffers_) device_.Free(buffer.data);
}

void* DeviceArena::Carve(const std::string& name, int64_t bytes) {
  FIRESTEEL_CHECK(!sealed_, "buffer '" + name + "' was requested after start-up");
  FIRESTEEL_CHECK(bytes >= 0, "buffer '" + name + "' has a negative size");
  if (!status_.ok()) return nullptr;
  void* data = nullptr;
  if (use_ == Use::kCount) {
    const int64_t address = kFirstCounted + RoundUp(total_bytes_, kAlignment) +
                            kAlignment * static_cast<int64_t>(buffers_.size());
    data = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): never followed
  } else {
    data = device_.Allocate(bytes);
  }
  if (data == nullptr) {
    status_ = ResourceExhausted(device_.Describe() + " is out of memory for buffer '" + name +
                                "' of " + std::to_string(bytes) + " bytes, after " +
                                std::to_string(total_bytes_) + " bytes of others");
    return nullptr;
  }
  buffers_.push_back({name, data, bytes});
  total_bytes_ += bytes;
  return data;
}

void* DeviceArena::Place(const std::string& name, const void* data, int64_t bytes) {
  void* placed = Carve(name, bytes);
  if (placed != nullptr && use_ == Use::kAllocate) {
    device_.stream().CopyToDevice(placed, data, bytes);
  }
  return placed;
}

}  // namespace firesteel
