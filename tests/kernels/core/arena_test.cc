#include "kernels/core/arena.h"

#include <cstdint>

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
    ++live;
    return inner_->Allocate(bytes);
  }
  void Free(void* pointer) override {
    --live;
    inner_->Free(pointer);
  }
  bool reads_host_memory() const override { return inner_->reads_host_memory(); }
  std::string Describe() const override { return "counting"; }

  int live = 0;

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

}  // namespace
}  // namespace firesteel
