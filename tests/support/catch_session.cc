// The only translation unit with Catch2's implementation; compiled once, unoptimised.
#include "tests/support/catch_session.h"

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

namespace firesteel {

int RunCatchSession(int argc, char** argv) { return Catch::Session().run(argc, argv); }

}  // namespace firesteel
