// Device memory of one benchmark case, filled with random values that are valid in their storage format. A value's bits
// matter little to a timing, but zeros, NaN and subnormals would flatter or punish: none is written on purpose.
//
// Built and used by the caller of RunKernelBench; freed with the case.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels/core/arena.h"
#include "kernels/ops/kv_record.h"
#include "kernels/ops/linear/linear.h"

namespace firesteel {

// Bytes of a weight with its scales; fp8 in blocks of 128.
int64_t WeightBytes(DType dtype, int64_t out, int64_t in);

class CaseBuffers {
 public:
  // Cache rows of one page, as the engine's pools have them: window positions, and entries that stand for four positions.
  static constexpr int32_t kWindowPageEntries = 64;
  static constexpr int32_t kContextPageEntries = 32;
  static constexpr int32_t kWeightBlock = 128;  // rows and columns of one fp8 scale

  explicit CaseBuffers(Device& device) : device_(device), arena_(device) {}

  template <typename T>
  T* Upload(const std::string& name, const std::vector<T>& values) {
    T* data = arena_.Carve<T>(name, static_cast<int64_t>(values.size()));
    device_.stream().CopyToDevice(data, values.data(),
                                  static_cast<int64_t>(values.size() * sizeof(T)));
    return data;
  }
  template <typename T>
  T* Zeros(const std::string& name, int64_t count) {
    return arena_.Carve<T>(name, count);
  }

  // [rows, cols] values in [-1, 1) as kF32 or kBf16.
  Rows RandomRows(const std::string& name, int64_t rows, int64_t cols, DType dtype);
  // Weights of any storage that the linear operations take.
  Weight RandomWeight(const std::string& name, DType dtype, int32_t out, int32_t in);
  // `pages` pages of encoded rows of values in [-1, 1).
  KvPages RandomPages(const std::string& name, KvFormat format, int32_t width, int32_t rope,
                      int32_t page_entries, int64_t pages);

  // 0 .. count - 1 in random order: pages of a pool lie as a server's allocator left them.
  std::vector<int32_t> Shuffled(int64_t count);
  // `chosen` different numbers below `count`, ascending. REQUIRES: chosen <= count.
  std::vector<int32_t> Choose(int32_t count, int32_t chosen);

 private:
  float RandomValue();
  // The random content of the buffers called `name`, `bytes` long: drawn by `fill` the first time, then the same, as drawing
  // takes longer than measuring does. Copies of a case's input differ in their addresses, which is what caches look at.
  template <typename Fill>
  const std::vector<std::byte>& Pattern(const std::string& name, int64_t bytes, Fill fill) {
    std::vector<std::byte>& pattern = patterns_[name + " " + std::to_string(bytes)];
    if (pattern.empty()) {
      pattern.resize(static_cast<size_t>(bytes));
      fill(pattern.data());
    }
    return pattern;
  }
  // A buffer that repeats `pattern` to the end.
  void* Tile(const std::string& name, const std::vector<std::byte>& pattern, int64_t bytes);

  Device& device_;
  DeviceArena arena_;
  std::mt19937 random_{20260101};
  std::map<std::string, std::vector<std::byte>> patterns_;
};

}  // namespace firesteel
