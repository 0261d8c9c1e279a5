// The strict contract between a model and its checkpoint: the model derives the full list of expected tensors from its
// config; the checkpoint must hold exactly these, each with the expected dtype and shape, and each is taken once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/weights/safetensors.h"
#include "kernels/core/dtype.h"
#include "kernels/core/status.h"

namespace firesteel {

struct ExpectedTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;  // stored shape (kF4E2M1x2: last dimension in bytes)
};

class WeightSet {
 public:
  // Compares the whole list with the checkpoint. Errors name the first missing, surplus or differing tensor, what was
  // found and what is needed, and how many others differ. `checkpoint` must outlive the set.
  static Result<WeightSet> Match(const Checkpoint& checkpoint,
                                 const std::vector<ExpectedTensor>& expected);

  // Bytes of one expected tensor. REQUIRES: expected, and not taken before.
  std::span<const std::byte> Take(const std::string& name);

  // DataLoss naming a tensor that was expected but never taken: a loader bug that would otherwise run silently.
  Status CheckAllTaken() const;

 private:
  struct Entry {
    std::span<const std::byte> data;
    bool taken = false;
  };
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace firesteel
