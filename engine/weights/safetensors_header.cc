#include "engine/weights/safetensors_header.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

namespace firesteel {
namespace {

constexpr size_t kMaxRank = 8;
constexpr uint64_t kMaxDimension = uint64_t{1} << 48;
constexpr uint64_t kMaxOffset = uint64_t{1} << 62;
constexpr size_t kMaxQuotedBytes = 160;
// Depth of values under skipped index keys; files written by known tools need 1.
constexpr int kMaxSkippedDepth = 16;

// Refuses every event with a message; a grammar overrides the ones it allows.
class StrictSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit StrictSax(const std::string& where) : where_(where) {}

  const Status& status() const { return status_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override {
    return Unexpected("the number " + std::to_string(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return Unexpected("the number " + std::to_string(value));
  }
  bool number_float(number_float_t, const string_t&) override {
    return Unexpected("a number that is no 64-bit integer");
  }
  bool string(string_t& value) override { return Unexpected("the string " + QuotedName(value)); }
  bool binary(binary_t&) override { return Unexpected("binary"); }
  bool start_object(size_t) override { return Unexpected("an object"); }
  bool start_array(size_t) override { return Unexpected("an array"); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail("is not valid JSON at byte " + std::to_string(position));
  }

 protected:
  virtual std::string Context() const = 0;

  bool Unexpected(const std::string& found) {
    return Fail(Context() + " does not allow " + found + " here");
  }
  bool Fail(const std::string& what) {
    if (status_.ok()) status_ = DataLoss(where_ + ": " + what);
    return false;
  }

 private:
  const std::string& where_;
  Status status_;
};

class HeaderSax final : public StrictSax {
 public:
  using StrictSax::StrictSax;

  std::vector<SafetensorsEntry> TakeEntries() && { return std::move(entries_); }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kStart: place_ = Place::kTop; return true;
      case Place::kTopValue: place_ = Place::kTensor; return true;
      case Place::kMetadataValue: place_ = Place::kMetadata; return true;
      default: return Unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    if (place_ == Place::kTop) return TopKey(name);
    if (place_ == Place::kTensor) return TensorKey(name);
    place_ = Place::kMetadataText;
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadataText) {
      place_ = Place::kMetadata;
      return true;
    }
    if (place_ != Place::kDtypeValue) return Unexpected("the string " + QuotedName(value));
    entry_.dtype = value;
    place_ = Place::kTensor;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kShapeValue) {
      place_ = Place::kShape;
    } else if (place_ == Place::kOffsetsValue) {
      place_ = Place::kOffsets;
    } else {
      return Unexpected("an array");
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (entry_.shape.size() == kMaxRank) {
        return Fail(Context() + " has more than " + std::to_string(kMaxRank) + " dimensions");
      }
      if (value > kMaxDimension) {
        return Fail(Context() + " has the dimension " + std::to_string(value) + ", needs at most " +
                    std::to_string(kMaxDimension));
      }
      entry_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ != Place::kOffsets) return StrictSax::number_unsigned(value);
    if (offset_count_ == 2) return Fail(Context() + " has more than 2 data_offsets");
    if (value > kMaxOffset) {
      return Fail(Context() + " has the data offset " + std::to_string(value) + ", needs at most " +
                  std::to_string(kMaxOffset));
    }
    (offset_count_ == 0 ? entry_.begin_byte : entry_.end_byte) = static_cast<int64_t>(value);
    ++offset_count_;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offset_count_ != 2) {
      return Fail(Context() + " has " + std::to_string(offset_count_) + " data_offsets, needs 2");
    }
    place_ = Place::kTensor;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTop) return true;
    if (place_ == Place::kTensor) {
      if (!has_dtype_) return Fail(Context() + " has no dtype");
      if (!has_shape_) return Fail(Context() + " has no shape");
      if (!has_offsets_) return Fail(Context() + " has no data_offsets");
      entries_.push_back(std::move(entry_));
    }
    place_ = Place::kTop;
    return true;
  }

 protected:
  std::string Context() const override {
    switch (place_) {
      case Place::kStart:
      case Place::kTop: return "header";
      case Place::kMetadataValue:
      case Place::kMetadata:
      case Place::kMetadataText: return "header key __metadata__";
      default: return "tensor " + QuotedName(entry_.name);
    }
  }

 private:
  // kXValue: the key X was read and its value comes next.
  enum class Place {
    kStart,
    kTop,
    kMetadataValue,
    kMetadata,
    kMetadataText,
    kTopValue,
    kTensor,
    kDtypeValue,
    kShapeValue,
    kShape,
    kOffsetsValue,
    kOffsets,
  };

  bool TopKey(const std::string& name) {
    if (!names_.insert(name).second) return Fail("header names " + QuotedName(name) + " twice");
    if (name == "__metadata__") {
      place_ = Place::kMetadataValue;
      return true;
    }
    entry_ = SafetensorsEntry();
    entry_.name = name;
    offset_count_ = 0;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    place_ = Place::kTopValue;
    return true;
  }

  bool TensorKey(const std::string& name) {
    bool* seen = nullptr;
    Place next = Place::kTensor;
    if (name == "dtype") {
      seen = &has_dtype_;
      next = Place::kDtypeValue;
    } else if (name == "shape") {
      seen = &has_shape_;
      next = Place::kShapeValue;
    } else if (name == "data_offsets") {
      seen = &has_offsets_;
      next = Place::kOffsetsValue;
    } else {
      return Fail(Context() + " has the unknown key " + QuotedName(name) +
                  ", needs dtype, shape and data_offsets");
    }
    if (*seen) return Fail(Context() + " has the key " + QuotedName(name) + " twice");
    *seen = true;
    place_ = next;
    return true;
  }

  Place place_ = Place::kStart;
  SafetensorsEntry entry_;
  int offset_count_ = 0;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::vector<SafetensorsEntry> entries_;
  std::unordered_set<std::string> names_;
};

bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

class IndexSax final : public StrictSax {
 public:
  using StrictSax::StrictSax;

  bool has_weight_map() const { return has_weight_map_; }
  std::vector<ShardIndexEntry> TakeEntries() && { return std::move(entries_); }

  bool null() override { return SkipOr("null"); }
  bool boolean(bool) override { return SkipOr("a boolean"); }
  bool number_integer(number_integer_t) override { return SkipOr("a number"); }
  bool number_unsigned(number_unsigned_t) override { return SkipOr("a number"); }
  bool number_float(number_float_t, const string_t&) override { return SkipOr("a number"); }

  bool string(string_t& value) override {
    if (place_ != Place::kFileName) return SkipOr("a string");
    if (!IsPlainFileName(value)) {
      return Fail("weight_map puts tensor " + QuotedName(tensor_) + " into " + QuotedName(value) +
                  ", needs a file name without a directory");
    }
    entries_.push_back({std::move(tensor_), value});
    place_ = Place::kWeightMap;
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kWeightMapValue) {
      place_ = Place::kWeightMap;
    } else {
      return Descend("an object");
    }
    return true;
  }
  bool start_array(size_t) override { return Descend("an array"); }

  bool key(string_t& name) override {
    if (place_ == Place::kWeightMap) {
      if (!names_.insert(name).second) {
        return Fail("weight_map names tensor " + QuotedName(name) + " twice");
      }
      tensor_ = name;
      place_ = Place::kFileName;
    } else if (place_ == Place::kTop && name == "weight_map") {
      if (has_weight_map_) return Fail("has the key 'weight_map' twice");
      has_weight_map_ = true;
      place_ = Place::kWeightMapValue;
    } else if (place_ == Place::kTop) {
      place_ = Place::kSkipped;
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kWeightMap) {
      place_ = Place::kTop;
      return true;
    }
    return Ascend();
  }
  bool end_array() override { return Ascend(); }

 protected:
  std::string Context() const override { return place_ == Place::kStart ? "index" : "weight_map"; }

 private:
  enum class Place { kStart, kTop, kWeightMapValue, kWeightMap, kFileName, kSkipped };

  bool SkipOr(const char* found) {
    if (place_ != Place::kSkipped) return Unexpected(found);
    if (skipped_depth_ == 0) place_ = Place::kTop;
    return true;
  }
  bool Descend(const char* found) {
    if (place_ != Place::kSkipped) return Unexpected(found);
    if (++skipped_depth_ > kMaxSkippedDepth) {
      return Fail("index nests deeper than " + std::to_string(kMaxSkippedDepth) + " levels");
    }
    return true;
  }
  bool Ascend() {
    if (place_ == Place::kSkipped && --skipped_depth_ == 0) place_ = Place::kTop;
    return true;
  }

  Place place_ = Place::kStart;
  int skipped_depth_ = 0;
  bool has_weight_map_ = false;
  std::string tensor_;
  std::vector<ShardIndexEntry> entries_;
  std::unordered_set<std::string> names_;
};

Status Parse(std::string_view json, const std::string& where, StrictSax* sax) {
  // The library takes a NUL byte for the end of the text, which would hide what follows.
  const size_t nul = json.find('\0');
  if (nul != std::string_view::npos) {
    return DataLoss(where + ": is not valid JSON at byte " + std::to_string(nul));
  }
  const bool parsed = nlohmann::json::sax_parse(json, sax);
  if (!sax->status().ok()) return sax->status();
  if (!parsed) return DataLoss(where + ": is not valid JSON");
  return Status::Ok();
}

}  // namespace

std::string QuotedName(std::string_view name) {
  size_t kept = std::min(name.size(), kMaxQuotedBytes);
  if (kept < name.size()) {
    // Not inside a UTF-8 character: the message may become JSON later.
    while (kept > 0 && (static_cast<unsigned char>(name[kept]) & 0xc0) == 0x80) --kept;
  }
  std::string quoted(1, '\'');
  quoted.append(name.substr(0, kept));
  quoted.append(kept < name.size() ? "...'" : "'");
  return quoted;
}

Result<std::vector<SafetensorsEntry>> ReadSafetensorsHeader(std::string_view json,
                                                            const std::string& where) {
  HeaderSax sax(where);
  FIRESTEEL_RETURN_IF_ERROR(Parse(json, where, &sax));
  return std::move(sax).TakeEntries();
}

Result<std::vector<ShardIndexEntry>> ReadShardIndex(std::string_view json,
                                                    const std::string& where) {
  IndexSax sax(where);
  FIRESTEEL_RETURN_IF_ERROR(Parse(json, where, &sax));
  if (!sax.has_weight_map()) return DataLoss(where + ": has no key 'weight_map'");
  return std::move(sax).TakeEntries();
}

}  // namespace firesteel
