// Tensors without a checkpoint, for timing: random valid codes of the right size, none of it trained. Used by the rank
// thread while a model is made.
//
// A fixed seed, so that two runs multiply by the same numbers. Magnitudes are such that activations stay finite through any
// number of layers: norm weights are one, everything else is small.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/arena.h"
#include "kernels/core/device.h"
#include "kernels/core/dtype.h"
#include "kernels/ops/kv_record.h"

namespace firesteel {

class SyntheticTensors {
 public:
  // Values of integer tensors are drawn from [0, index_bound).
  SyntheticTensors(Device& device, DeviceArena& arena, int64_t index_bound)
      : device_(device), arena_(arena), index_bound_(index_bound) {}

  // `name` and `shape` as a checkpoint would have them. The memory lives as long as the arena.
  const void* Tensor(const std::string& name, DType dtype, std::span<const int64_t> shape);

  // A host table that kernels read: copied as it is.
  const void* Table(const std::string& name, const void* data, int64_t bytes);

 private:
  struct Pattern {
    const std::byte* data = nullptr;  // device memory
    int64_t bytes = 0;
  };
  const Pattern& PatternOf(DType dtype);
  // Many tensors share one allocation: a device rounds each of its own up to a large multiple.
  std::byte* Take(int64_t bytes);

  Device& device_;
  DeviceArena& arena_;
  const int64_t index_bound_;
  std::minstd_rand random_{2026};
  std::map<DType, Pattern> patterns_;
  std::byte* chunk_ = nullptr;
  int64_t chunk_left_ = 0;
};

// Fills all `count` pages with encoded random rows. Rows repeat after a few thousand.
void FillPages(Device& device, const KvPages& pages, int64_t count);

}  // namespace firesteel
