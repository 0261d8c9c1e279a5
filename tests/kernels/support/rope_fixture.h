// A rotary table with owned storage: angle = position * theta^(-2i / rope).
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/ops/rope/rope.h"

namespace firesteel {

class RopeFixture {
 public:
  RopeFixture(int32_t positions, int32_t rope, double theta = 100.0) : rope_(rope) {
    for (int32_t p = 0; p < positions; ++p) {
      for (int32_t i = 0; i < rope / 2; ++i) {
        const double angle = p * std::pow(theta, -2.0 * i / rope);
        cos_.push_back(static_cast<float>(std::cos(angle)));
        sin_.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  RopeFixture(const RopeFixture&) = delete;
  RopeFixture& operator=(const RopeFixture&) = delete;

  RopeTable table() const { return {cos_.data(), sin_.data(), rope_}; }

  // Rotates the last `rope` of `values` by the definition, in double precision.
  void Rotate(std::vector<double>& values, int32_t position, bool inverse = false) const {
    const size_t first = values.size() - static_cast<size_t>(rope_);
    for (size_t i = 0; i < static_cast<size_t>(rope_ / 2); ++i) {
      const size_t at = static_cast<size_t>(position * rope_ / 2) + i;
      const double c = static_cast<double>(cos_[at]);
      const double s = (inverse ? -1.0 : 1.0) * static_cast<double>(sin_[at]);
      const double a = values[first + 2 * i];
      const double b = values[first + 2 * i + 1];
      values[first + 2 * i] = a * c - b * s;
      values[first + 2 * i + 1] = b * c + a * s;
    }
  }

 private:
  int32_t rope_;
  std::vector<float> cos_;
  std::vector<float> sin_;
};

}  // namespace firesteel
