// `firesteel generate` and `firesteel eval`.
#pragma once

#include "server/cli/cli_options.h"

namespace firesteel {

// Returns the exit code. Standard output gets result lines only; the summary is the last line of standard error.
int RunOffline(const CliOptions& options);

}  // namespace firesteel
