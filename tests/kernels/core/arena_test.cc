#include "kernels/core/arena.h"

#include <cstdint>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

// Counts what reaches it and hands everything to a CPU device.
class CountingDevice final : public Device {
 public:
  const KernelTable& kernels() const override { return inner_->kernels(); }
  Stream& stream() override { return inner_->stream(); }
  void* Allocate(int64_t bytes) override {
    if (live == capacity) return nullptr;
    ++live;
    return inner_->Allocate(bytes);
  }
  void Free(void* pointer) override {
    --live;
    inner_->Free(pointer);
  }
  bool reads_host_memory() const override { return inner_->reads_host_memory(); }
  DeviceMemory memory() const override { return inner_->memory(); }
  std::string Describe() const override { return "counting"; }

  int live = 0;
  int capacity = 1000;

 private:
  std::unique_ptr<Device> inner_ = CreateCpuDevice(1);
};

TEST_CASE("arena buffers are zeroed, aligned and listed by name", "[core][arena]") {
  CountingDevice device;
  DeviceArena arena(device);
  const int32_t* ints = arena.Carve<int32_t>("ints", 100);
  const uint8_t* bytes = arena.Carve<uint8_t>("bytes", 7);
  for (int i = 0; i < 100; ++i) REQUIRE(ints[i] == 0);
  for (int i = 0; i < 7; ++i) REQUIRE(bytes[i] == 0);
  CHECK(reinterpret_cast<uintptr_t>(ints) % 256 == 0);
  CHECK(reinterpret_cast<uintptr_t>(bytes) % 256 == 0);
  CHECK(arena.total_bytes() == 407);
  REQUIRE(arena.buffers().size() == 2);
  CHECK(arena.buffers()[0].name == "ints");
  CHECK(arena.buffers()[1].bytes == 7);
}

TEST_CASE("an empty arena buffer is not null", "[core][arena]") {
  CountingDevice device;
  DeviceArena arena(device);
  CHECK(arena.Carve("nothing", 0) != nullptr);
}

TEST_CASE("an arena frees every buffer when it goes away", "[core][arena]") {
  CountingDevice device;
  {
    DeviceArena arena(device);
    for (int i = 0; i < 5; ++i) arena.Carve("buffer", 64);
    CHECK(device.live == 5);
  }
  CHECK(device.live == 0);
}

TEST_CASE("a buffer that does not fit is named and ends the arena's use of the device",
          "[core][arena]") {
  CountingDevice device;
  device.capacity = 2;
  DeviceArena arena(device);
  CHECK(arena.Carve("first", 64) != nullptr);
  CHECK(arena.Carve("second", 32) != nullptr);
  CHECK(arena.status().ok());
  const int32_t value = 7;
  CHECK(arena.Place("third", &value, sizeof value) == nullptr);
  CHECK(arena.Carve("fourth", 1) == nullptr);
  CHECK(arena.status().code() == StatusCode::kResourceExhausted);
  CHECK(arena.status().message() ==
        "counting is out of memory for buffer 'third' of 4 bytes, after 96 bytes of others");
}

TEST_CASE("a counting arena sums up what it is asked for and reserves nothing", "[core][arena]") {
  CountingDevice device;
  DeviceArena arena(device, DeviceArena::Use::kCount);
  const std::vector<int32_t> values(10, 1);
  const void* first = arena.Place("first", values.data(), 40);
  const void* second = arena.Carve("second", int64_t{1} << 50);
  CHECK(first != nullptr);
  CHECK(second != nullptr);
  CHECK(first != second);
  CHECK(reinterpret_cast<uintptr_t>(second) % 256 == 0);
  CHECK(arena.total_bytes() == (int64_t{1} << 50) + 40);
  CHECK(device.live == 0);
}

TEST_CASE("a placed buffer holds the host's bytes", "[core][arena]") {
  CountingDevice device;
  DeviceArena arena(device);
  const std::vector<int32_t> values = {3, 1, 4};
  const auto* placed = static_cast<const int32_t*>(arena.Place("values", values.data(), 12));
  CHECK(std::vector<int32_t>(placed, placed + 3) == values);
}

}  // namespace
}  // namespace firesteel
