#include "server/cli/config_file.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace firesteel {

using Json = nlohmann::json;

namespace {

// The library's text without its "[json.exception...]" tag.
std::string Reason(const Json::exception& error) {
  const std::string text = error.what();
  const size_t tag = text.find("] ");
  return tag == std::string::npos ? text : text.substr(tag + 2);
}

}  // namespace

Result<std::vector<std::string>> ParseConfig(const std::string& text, const std::string& where) {
  Json config;
  try {
    config = Json::parse(text, nullptr, true, /*ignore_comments=*/true);
  } catch (const Json::exception& error) {
    return InvalidArgument(where + ": malformed JSON: " + Reason(error));
  }
  if (!config.is_object())
    return InvalidArgument(where + ": needs a JSON object of flag names and values");
  std::vector<std::string> args;
  for (const auto& item : config.items()) {
    std::string flag = "--" + item.key();
    std::replace(flag.begin(), flag.end(), '_', '-');
    const Json& value = item.value();
    if (flag == "--config")
      return InvalidArgument(where + ": a config file cannot name another one");
    if (flag == "--access-log" && value.is_boolean()) {
      args.push_back(flag + (value.get<bool>() ? "=on" : "=off"));
    } else if (value.is_boolean()) {
      if (value.get<bool>()) args.push_back(flag);
    } else if (value.is_string()) {
      args.push_back(flag + "=" + value.get<std::string>());
    } else if (value.is_number()) {
      args.push_back(flag + "=" + value.dump());
    } else {
      return InvalidArgument(where + ": '" + item.key() +
                             "' needs a string, a number, true or false");
    }
  }
  return args;
}

Result<std::vector<std::string>> ReadConfigFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return NotFound("config file '" + path + "' cannot be read");
  std::ostringstream text;
  text << file.rdbuf();
  if (!text) return InvalidArgument("config file '" + path + "' is empty or cannot be read");
  return ParseConfig(text.str(), path);
}

}  // namespace firesteel
