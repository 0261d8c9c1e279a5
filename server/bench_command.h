// `firesteel bench`: measurements of this machine.
#pragma once

#include "server/cli/cli_options.h"

namespace firesteel {

// Prints one JSON line per figure on stdout and a table on stderr. Returns the exit code.
int RunStepBenchCommand(const CliOptions& options);

}  // namespace firesteel
