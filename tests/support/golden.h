// Reads golden folders under tests/fixtures/golden and compares against them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/weights/safetensors.h"

namespace firesteel {

std::string GoldenDir(const std::string& folder);
nlohmann::json ReadJson(const std::string& path);

class GoldenTensors {
 public:
  explicit GoldenTensors(const std::string& path);
  std::vector<float> Floats(const std::string& name) const;
  std::vector<int32_t> Ints(const std::string& name) const;
  const std::vector<int64_t>& Shape(const std::string& name) const;

 private:
  const StoredTensor& Get(const std::string& name) const;
  Checkpoint file_;
};

// Largest absolute difference; infinity when a value is not finite or the sizes differ. `where` receives its index.
double MaxAbsDifference(std::span<const float> found, std::span<const float> needed, size_t* where);

// ||found - needed|| / ||needed||; infinity as above.
double RelativeDifference(std::span<const float> found, std::span<const float> needed);

// The last `rows` rows of a [*, cols] matrix.
std::span<const float> LastRows(const std::vector<float>& matrix, int64_t cols, int64_t rows);

}  // namespace firesteel
