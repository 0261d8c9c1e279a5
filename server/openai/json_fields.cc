#include "server/openai/json_fields.h"

#include <nlohmann/json.hpp>

namespace firesteel {

using Json = nlohmann::json;

namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kDescribedBytes = 60;

// The parser itself keeps no call stack, but what it builds would be walked by recursive code later.
bool TooDeep(const std::string& text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

std::string Number(double value) {
  std::string text = Json(value).dump();
  if (text.size() > 2 && text.compare(text.size() - 2, 2, ".0") == 0) text.resize(text.size() - 2);
  return text;
}

}  // namespace

Result<std::unique_ptr<Json>> ParseJson(const std::string& text) {
  if (TooDeep(text)) {
    return InvalidArgument("JSON is nested deeper than " + std::to_string(kMaxDepth) + " levels");
  }
  try {
    return std::make_unique<Json>(Json::parse(text));
  } catch (const Json::exception& error) {
    return InvalidArgument(std::string("malformed JSON: ") + error.what());
  }
}

std::string DescribeJson(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list of " + std::to_string(value.size());
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kDescribedBytes) {
    size_t cut = kDescribedBytes;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
    text = text.substr(0, cut) + "...";
  }
  return text;
}

const Json* FieldReader::Find(const std::string& name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void FieldReader::Fail(const std::string& name, const std::string& message) {
  if (ok()) error_ = FieldError(name, message);
}

void FieldReader::FailValue(const std::string& name, const Json& value, const std::string& needs) {
  Fail(name, name + " is " + DescribeJson(value) + ", needs " + needs);
}

void FieldReader::ReadInt(const std::string& name, int64_t low, int64_t high, int64_t* out) {
  const Json* value = Find(name);
  if (value == nullptr || !ok()) return;
  const bool in_int64 =
      value->is_number_integer() &&
      (!value->is_number_unsigned() || value->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  const int64_t number = in_int64 ? value->get<int64_t>() : 0;
  if (!in_int64 || number < low || number > high) {
    return FailValue(name, *value,
                     "an integer in " + std::to_string(low) + ".." + std::to_string(high));
  }
  *out = number;
}

void FieldReader::ReadFloat(const std::string& name, double low, double high, double* out) {
  const Json* value = Find(name);
  if (value == nullptr || !ok()) return;
  const double number = value->is_number() ? value->get<double>() : 0.0;
  if (!value->is_number() || !(number >= low && number <= high)) {
    return FailValue(name, *value, "a number in " + Number(low) + ".." + Number(high));
  }
  *out = number;
}

void FieldReader::ReadBool(const std::string& name, bool* out) {
  const Json* value = Find(name);
  if (value == nullptr || !ok()) return;
  if (!value->is_boolean()) return FailValue(name, *value, "true or false");
  *out = value->get<bool>();
}

void FieldReader::ReadString(const std::string& name, std::string* out) {
  const Json* value = Find(name);
  if (value == nullptr || !ok()) return;
  if (!value->is_string()) return FailValue(name, *value, "a string");
  *out = value->get<std::string>();
}

void FieldReader::ReadSeed(const std::string& name, std::optional<uint64_t>* out) {
  const Json* value = Find(name);
  if (value == nullptr || !ok()) return;
  if (!value->is_number_integer()) return FailValue(name, *value, "a 64-bit integer");
  *out = value->is_number_unsigned() ? value->get<uint64_t>()
                                     : static_cast<uint64_t>(value->get<int64_t>());
}

}  // namespace firesteel
