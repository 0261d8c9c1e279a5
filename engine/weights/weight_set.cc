#include "engine/weights/weight_set.h"

#include "engine/weights/safetensors_header.h"

namespace firesteel {
namespace {

std::string Describe(DType dtype, const std::vector<int64_t>& shape) {
  std::string text = std::string(DTypeName(dtype)) + " [";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

// Keeps the first difference and counts the rest.
class Differences {
 public:
  void Add(Status difference) {
    ++count_;
    if (first_.ok()) first_ = std::move(difference);
  }

  Status ToStatus() const {
    if (count_ <= 1) return first_;
    return Status(first_.code(),
                  first_.message() + "; " + std::to_string(count_ - 1) + " further tensors differ");
  }

 private:
  int64_t count_ = 0;
  Status first_;
};

}  // namespace

Result<WeightSet> WeightSet::Match(const Checkpoint& checkpoint,
                                   const std::vector<ExpectedTensor>& expected) {
  WeightSet set;
  Differences differences;
  for (const ExpectedTensor& tensor : expected) {
    const bool inserted = set.entries_.emplace(tensor.name, Entry()).second;
    FIRESTEEL_CHECK(inserted, "the model expects tensor " + tensor.name + " twice");
    const StoredTensor* stored = checkpoint.Find(tensor.name);
    const std::string needed = Describe(tensor.dtype, tensor.shape);
    if (stored == nullptr) {
      differences.Add(NotFound("checkpoint: tensor " + QuotedName(tensor.name) +
                               " is missing, needs " + needed));
    } else if (stored->dtype != tensor.dtype || stored->shape != tensor.shape) {
      differences.Add(InvalidArgument("checkpoint: tensor " + QuotedName(tensor.name) + " is " +
                                      Describe(stored->dtype, stored->shape) + ", needs " +
                                      needed));
    } else {
      set.entries_[tensor.name].data = stored->data;
    }
  }
  for (const StoredTensor& stored : checkpoint.tensors()) {
    if (set.entries_.contains(stored.name)) continue;
    differences.Add(InvalidArgument("checkpoint: tensor " + QuotedName(stored.name) + " (" +
                                    Describe(stored.dtype, stored.shape) +
                                    ") is not part of the model, needs exactly the " +
                                    std::to_string(expected.size()) + " expected tensors"));
  }
  FIRESTEEL_RETURN_IF_ERROR(differences.ToStatus());
  return set;
}

std::span<const std::byte> WeightSet::Take(const std::string& name) {
  const auto found = entries_.find(name);
  FIRESTEEL_CHECK(found != entries_.end(), "tensor " + name + " was not expected");
  FIRESTEEL_CHECK(!found->second.taken, "tensor " + name + " was taken before");
  found->second.taken = true;
  return found->second.data;
}

Status WeightSet::CheckAllTaken() const {
  const std::string* first = nullptr;  // the smallest name: the map has no order of its own
  int64_t count = 0;
  for (const auto& [name, entry] : entries_) {
    if (entry.taken) continue;
    ++count;
    if (first == nullptr || name < *first) first = &name;
  }
  if (count == 0) return Status::Ok();
  return DataLoss("checkpoint: tensor " + QuotedName(*first) + " was never loaded; " +
                  std::to_string(count) + " of " + std::to_string(entries_.size()) +
                  " expected tensors were not");
}

}  // namespace firesteel
