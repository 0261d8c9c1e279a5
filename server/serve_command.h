// `firesteel serve`: loads, listens, and drains on SIGINT or SIGTERM.
#pragma once

#include "server/cli/cli_options.h"

namespace firesteel {

// Returns the exit code. REQUIRES: SIGINT and SIGTERM are blocked in every thread, so that they are waited for here.
int RunServe(const CliOptions& options);

}  // namespace firesteel
