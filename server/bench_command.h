// `firesteel bench`: measurements of this machine.
#pragma once

#include "server/cli/cli_options.h"

namespace firesteel {

// Both print one JSON line per figure on stdout and a table on stderr, and return the exit code.
int RunStepBenchCommand(const CliOptions& options);
int RunKernelBenchCommand(const CliOptions& options);

}  // namespace firesteel
