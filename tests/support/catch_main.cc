// The main of every test binary that does not bring its own.
#include "tests/support/catch_session.h"

int main(int argc, char** argv) { return firesteel::RunCatchSession(argc, argv); }
