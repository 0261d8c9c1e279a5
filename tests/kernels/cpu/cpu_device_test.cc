#include "kernels/cpu/cpu_device.h"

#include <vector>

#include "kernels/core/launch.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

struct AddArgs {
  const int* from;
  int* to;
  int amount;
};

void Add(Stream&, const AddArgs& a) { *a.to = *a.from + a.amount; }

TEST_CASE("an eager launch runs at once", "[cpu][device]") {
  const auto device = CreateCpuDevice(1);
  int from = 5;
  int to = 0;
  Launch(device->stream(), &Add, AddArgs{&from, &to, 2});
  CHECK(to == 7);
}

TEST_CASE("capturing records without executing", "[cpu][device]") {
  const auto device = CreateCpuDevice(1);
  int from = 5;
  int to = -1;
  device->stream().BeginCapture();
  Launch(device->stream(), &Add, AddArgs{&from, &to, 2});
  Launch(device->stream(), &Add, AddArgs{&to, &to, 1});
  CHECK(to == -1);
  auto graph = device->stream().EndCapture();
  REQUIRE(graph.ok());
  CHECK(to == -1);
  CHECK(graph.value()->num_nodes() == 2);
}

TEST_CASE("a replay reads memory as it is then, with the arguments of the capture",
          "[cpu][device]") {
  const auto device = CreateCpuDevice(1);
  int from = 5;
  int to = 0;
  AddArgs args{&from, &to, 2};
  device->stream().BeginCapture();
  Launch(device->stream(), &Add, args);
  Launch(device->stream(), &Add, AddArgs{&to, &to, 100});
  auto graph = device->stream().EndCapture();
  REQUIRE(graph.ok());
  args.amount = 1000;  // the captured copy must not see this
  from = 7;
  graph.value()->Replay(device->stream());
  CHECK(to == 109);
  from = 20;
  graph.value()->Replay(device->stream());
  CHECK(to == 122);
}

TEST_CASE("launches after a capture run eagerly again", "[cpu][device]") {
  const auto device = CreateCpuDevice(1);
  int from = 1;
  int to = 0;
  device->stream().BeginCapture();
  auto graph = device->stream().EndCapture();
  REQUIRE(graph.ok());
  CHECK(graph.value()->num_nodes() == 0);
  Launch(device->stream(), &Add, AddArgs{&from, &to, 1});
  CHECK(to == 2);
  CHECK(device->stream().Synchronize().ok());
}

TEST_CASE("copies move exactly the bytes asked for", "[cpu][device]") {
  const auto device = CreateCpuDevice(1);
  const int host[3] = {1, 2, 3};
  int* memory = static_cast<int*>(device->Allocate(3 * sizeof(int)));
  device->stream().CopyToDevice(memory, host, 2 * sizeof(int));
  int back[3] = {9, 9, 9};
  device->stream().CopyToHost(back, memory, 3 * sizeof(int));
  device->Free(memory);
  CHECK(back[0] == 1);
  CHECK(back[1] == 2);
  CHECK(back[2] == 0);  // fresh memory is zero
}

TEST_CASE("a copy on the device moves every byte, also one that several workers share",
          "[cpu][device]") {
  const std::unique_ptr<Device> device = CreateCpuDevice(3);
  constexpr int64_t kBytes = (int64_t{5} << 20) + 3;
  std::vector<uint8_t> from(kBytes);
  for (int64_t i = 0; i < kBytes; ++i) from[static_cast<size_t>(i)] = static_cast<uint8_t>(i % 251);
  std::vector<uint8_t> to(kBytes + 1, 255);
  device->stream().CopyOnDevice(to.data(), from.data(), kBytes);
  REQUIRE(device->stream().Synchronize().ok());
  CHECK(to.back() == 255);
  to.pop_back();
  CHECK(to == from);
}

TEST_CASE("a copy of no bytes takes null addresses", "[cpu]") {
  const std::unique_ptr<Device> device = CreateCpuDevice(1);
  device->stream().CopyToDevice(nullptr, nullptr, 0);
  device->stream().CopyToHost(nullptr, nullptr, 0);
  device->stream().CopyOnDevice(nullptr, nullptr, 0);
  CHECK(device->stream().Synchronize().ok());
}

}  // namespace
}  // namespace firesteel
