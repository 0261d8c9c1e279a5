#include "engine/runtime/spsc_ring.h"

#include <thread>
#include <vector>

#include "tests/support/catch.h"

namespace firesteel {

TEST_CASE("a full ring offers no slot until one is popped", "[runtime][ring]") {
  WakeSignal wake;
  SpscRing<int> ring(std::vector<int>(2), &wake);
  for (int i = 0; i < 2; ++i) {
    int* slot = ring.BeginPush();
    REQUIRE(slot != nullptr);
    *slot = i;
    ring.EndPush();
  }
  CHECK(ring.BeginPush() == nullptr);
  ring.Pop();
  CHECK(ring.BeginPush() != nullptr);
  REQUIRE(ring.Front() != nullptr);
  CHECK(*ring.Front() == 1);
}

TEST_CASE("a slot is not seen before it is published", "[runtime][ring]") {
  WakeSignal wake;
  SpscRing<int> ring(std::vector<int>(1), &wake);
  *ring.BeginPush() = 5;
  CHECK(ring.Front() == nullptr);
  const uint32_t before = wake.Epoch();
  ring.EndPush();
  CHECK(wake.Epoch() != before);
  CHECK(ring.Front() != nullptr);
}

TEST_CASE("values cross threads complete and in order", "[runtime][ring]") {
  constexpr int kCount = 20000;
  WakeSignal full;
  WakeSignal popped;
  SpscRing<std::vector<int>> ring(std::vector<std::vector<int>>(3), &full);
  std::thread producer([&] {
    for (int i = 0; i < kCount; ++i) {
      std::vector<int>* slot = nullptr;
      while (true) {
        const uint32_t seen = popped.Epoch();
        slot = ring.BeginPush();
        if (slot != nullptr) break;
        popped.Wait(seen);
      }
      slot->assign(3, i);
      ring.EndPush();
    }
  });
  bool in_order = true;
  for (int i = 0; i < kCount; ++i) {
    std::vector<int>* slot = nullptr;
    while (true) {
      const uint32_t seen = full.Epoch();
      slot = ring.Front();
      if (slot != nullptr) break;
      full.Wait(seen);
    }
    in_order = in_order && *slot == std::vector<int>(3, i);
    ring.Pop();
    popped.Notify();
  }
  producer.join();
  CHECK(in_order);
}

}  // namespace firesteel
