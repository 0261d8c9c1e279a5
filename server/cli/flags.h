// argv to CliOptions. The only translation unit that sees CLI11.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/cli/cli_options.h"

namespace firesteel {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitBadFlags = 2;

struct ParsedFlags {
  std::optional<CliOptions> options;  // absent: print `text` and exit with `exit_code`
  int exit_code = kExitOk;
  std::string text;  // help and version (exit code 0, for stdout) or an error (for stderr)
};

// `args` without the program's name.
ParsedFlags ParseFlags(const std::vector<std::string>& args);

}  // namespace firesteel
