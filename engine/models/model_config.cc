#include "engine/models/model_config.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace firesteel {

Result<ModelConfig> ReadModelConfig(const std::string& model_dir) {
  ModelConfig config;
  config.path = model_dir + "/config.json";
  std::error_code ignored;  // whatever cannot be examined cannot be opened either
  if (std::filesystem::is_regular_file(model_dir, ignored)) {
    return InvalidArgument("model is '" + model_dir +
                           "', which is a file, needs a checkpoint's directory");
  }
  std::ifstream file(config.path, std::ios::binary);
  if (!file) return NotFound(config.path + " cannot be opened, needs a checkpoint's config.json");
  std::ostringstream text;
  text << file.rdbuf();
  config.text = text.str();
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(config.text);
  } catch (const nlohmann::json::parse_error& error) {
    return InvalidArgument(config.path + " is not valid JSON at byte " +
                           std::to_string(std::min(error.byte, config.text.size())) + " of " +
                           std::to_string(config.text.size()));
  } catch (const nlohmann::json::exception&) {
    return InvalidArgument(config.path + " has a number outside the range of JSON readers");
  }
  if (!json.is_object()) return InvalidArgument(config.path + " is not a JSON object");
  const auto architectures = json.find("architectures");
  if (architectures == json.end() || !architectures->is_array() || architectures->empty() ||
      !architectures->front().is_string()) {
    return InvalidArgument(config.path + ": architectures is missing, needs a list with one name");
  }
  config.architecture = architectures->front().get<std::string>();
  const auto vocab = json.find("vocab_size");
  const bool has_vocab = vocab != json.end() && vocab->is_number_unsigned();
  const auto eos = json.find("eos_token_id");
  if (eos != json.end() && !eos->is_null()) {
    const nlohmann::json list = eos->is_array() ? *eos : nlohmann::json::array({*eos});
    for (const nlohmann::json& id : list) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
        return InvalidArgument(config.path + ": eos_token_id is " + eos->dump() +
                               ", needs token ids");
      }
      if (has_vocab && id.get<uint64_t>() >= vocab->get<uint64_t>()) {
        return InvalidArgument(config.path + ": eos_token_id is " + eos->dump() +
                               ", needs ids below vocab_size " + vocab->dump());
      }
      config.eos_tokens.push_back(id.get<int32_t>());
    }
  }
  return config;
}

}  // namespace firesteel
