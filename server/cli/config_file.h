// The --config file of `serve`: a JSON object with comments whose keys are flag names, with - or _ between words.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/status.h"

namespace firesteel {

// The file's content as command-line arguments, {"http_port": 8000} as {"--http-port=8000"}. A true switch becomes its
// flag, a false one nothing. Whether a flag exists is for the flag parser to say.
Result<std::vector<std::string>> ReadConfigFile(const std::string& path);

// The same from the file's text; `where` names it in errors.
Result<std::vector<std::string>> ParseConfig(const std::string& text, const std::string& where);

}  // namespace firesteel
