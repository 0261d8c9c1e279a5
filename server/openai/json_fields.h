// Strict reading of JSON objects that strangers send.
//
// FieldReader keeps the first error and does nothing after it, so that a parser reads as a list of fields and checks
// once. Every optional field may be null, which means absent.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "kernels/core/status.h"
#include "server/openai/api_error.h"

namespace firesteel {

// Parses one JSON document. InvalidArgument for malformed text, text that is not UTF-8 and nesting deeper than 64.
Result<std::unique_ptr<nlohmann::json>> ParseJson(const std::string& text);

// `value` in few characters, for error messages.
std::string DescribeJson(const nlohmann::json& value);

class FieldReader {
 public:
  // `object` outlives the reader. REQUIRES: object.is_object().
  explicit FieldReader(const nlohmann::json& object) : object_(object) {}

  // The value of a field, or null when it is absent or null. Never an error.
  const nlohmann::json* Find(const std::string& name) const;

  // Each leaves `out` alone when the field is absent or null, or after an error. Bounds are inclusive.
  void ReadInt(const std::string& name, int64_t low, int64_t high, int64_t* out);
  void ReadFloat(const std::string& name, double low, double high, double* out);
  void ReadBool(const std::string& name, bool* out);
  void ReadString(const std::string& name, std::string* out);
  // Any JSON integer, negative ones included, as 64 bits.
  void ReadSeed(const std::string& name, std::optional<uint64_t>* out);

  void Fail(const std::string& name, const std::string& message);
  // "NAME is VALUE, needs WHAT".
  void FailValue(const std::string& name, const nlohmann::json& value, const std::string& needs);

  bool ok() const { return !error_.has_value(); }
  const ApiError& error() const { return *error_; }

 private:
  const nlohmann::json& object_;
  std::optional<ApiError> error_;
};

}  // namespace firesteel
