// Reproducible values for kernel tests. One object per test case; no shared state.
#pragma once

#include <cstdint>

namespace firesteel {

class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 1) {}

  // splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators").
  uint64_t Bits() {
    state_ += 0x9E3779B97F4A7C15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  int32_t Below(int32_t bound) {
    return static_cast<int32_t>(Bits() % static_cast<uint64_t>(bound));
  }
  float Uniform(float low, float high) {
    return low + (high - low) * (static_cast<float>(Bits() >> 40) * 0x1p-24F);
  }

 private:
  uint64_t state_;
};

}  // namespace firesteel
