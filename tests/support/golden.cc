#include "tests/support/golden.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "tests/support/test_environment.h"

namespace firesteel {

std::string GoldenDir(const std::string& folder) {
  return TestRoot() + "/tests/fixtures/golden/" + folder;
}

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(path);
  FIRESTEEL_CHECK(static_cast<bool>(file), path + " cannot be opened");
  return nlohmann::json::parse(file);
}

namespace {

Checkpoint OpenOrAbort(const std::string& path) {
  Result<Checkpoint> file = Checkpoint::OpenFile(path);
  FIRESTEEL_CHECK(file.ok(), file.status().ToString());
  return std::move(file).value();
}

}  // namespace

GoldenTensors::GoldenTensors(const std::string& path) : file_(OpenOrAbort(path)) {}

const StoredTensor& GoldenTensors::Get(const std::string& name) const {
  const StoredTensor* tensor = file_.Find(name);
  FIRESTEEL_CHECK(tensor != nullptr, "golden tensor " + name + " is missing");
  return *tensor;
}

std::vector<float> GoldenTensors::Floats(const std::string& name) const {
  const StoredTensor& tensor = Get(name);
  FIRESTEEL_CHECK(tensor.dtype == DType::kF32, name + " is not F32");
  std::vector<float> values(tensor.data.size() / 4);
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

std::vector<int32_t> GoldenTensors::Ints(const std::string& name) const {
  const StoredTensor& tensor = Get(name);
  FIRESTEEL_CHECK(tensor.dtype == DType::kI32, name + " is not I32");
  std::vector<int32_t> values(tensor.data.size() / 4);
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

const std::vector<int64_t>& GoldenTensors::Shape(const std::string& name) const {
  return Get(name).shape;
}

double MaxAbsDifference(std::span<const float> found, std::span<const float> needed,
                        size_t* where) {
  if (found.size() != needed.size()) return std::numeric_limits<double>::infinity();
  double most = 0.0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double difference = std::abs(double{found[i]} - double{needed[i]});
    if (!(difference <= most)) {
      most = std::isfinite(difference) ? difference : std::numeric_limits<double>::infinity();
      if (where != nullptr) *where = i;
    }
  }
  return most;
}

double RelativeDifference(std::span<const float> found, std::span<const float> needed) {
  if (found.size() != needed.size()) return std::numeric_limits<double>::infinity();
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double d = double{found[i]} - double{needed[i]};
    difference += d * d;
    norm += double{needed[i]} * double{needed[i]};
  }
  const double ratio = std::sqrt(difference / norm);
  return std::isfinite(ratio) ? ratio : std::numeric_limits<double>::infinity();
}

std::span<const float> LastRows(const std::vector<float>& matrix, int64_t cols, int64_t rows) {
  const size_t count = static_cast<size_t>(cols * rows);
  FIRESTEEL_CHECK(matrix.size() >= count, "matrix has too few rows");
  return std::span<const float>(matrix).last(count);
}

}  // namespace firesteel
