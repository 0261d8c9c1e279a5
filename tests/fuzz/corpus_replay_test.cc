// Runs a fuzz target over its stored corpus: what a fuzzer once found stays tested in every build.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/catch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t byte_count);

namespace {

std::vector<std::filesystem::path> CorpusFiles() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(FIRESTEEL_CORPUS_DIR)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

TEST_CASE("the fuzz target survives every file of its corpus", "[corpus]") {
  const std::vector<std::filesystem::path> files = CorpusFiles();
  REQUIRE_FALSE(files.empty());
  for (const std::filesystem::path& path : files) {
    INFO(path.string());
    std::ifstream stream(path, std::ios::binary);
    REQUIRE(stream.is_open());
    // A heap block of the exact length, so that a sanitizer sees a read past its end.
    const std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(stream)),
                                     std::istreambuf_iterator<char>());
    const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
    CHECK(LLVMFuzzerTestOneInput(exact.data(), exact.size()) == 0);
  }
}
