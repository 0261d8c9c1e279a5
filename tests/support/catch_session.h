// Runs the tests of this binary as the command line says. For main functions.
#pragma once

namespace firesteel {

// The exit status.
int RunCatchSession(int argc, char** argv);

}  // namespace firesteel
