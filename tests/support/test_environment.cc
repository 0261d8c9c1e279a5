#include "tests/support/test_environment.h"

#include <filesystem>
#include <system_error>

namespace firesteel {

std::string TestRoot() {
  std::error_code error;
  const std::filesystem::path here = std::filesystem::current_path(error);
  if (!error && std::filesystem::exists(here / "configs/demo-v4/config.json", error) &&
      std::filesystem::exists(here / "tests/fixtures/golden", error)) {
    return here.string();
  }
  return FIRESTEEL_SOURCE_DIR;
}

}  // namespace firesteel
