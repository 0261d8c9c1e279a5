// Greedy text does not depend on speculation, batch composition, prefill chunking or graph replay: bit for bit.
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/engine_runner.h"
#include "tests/support/test_environment.h"

namespace firesteel {
namespace {

// Sixteen requests fill the largest batch; short outputs keep the fast tests fast (the slow matrix crosses the factors).
// Long prompts exercise top-k pruning and windows that moved on.
std::vector<RunRequest> Requests() {
  std::vector<RunRequest> requests;
  const std::vector<GreedyCase> brief = ReadGreedyCases("greedy.json", 24);
  for (size_t i = 0; i < 14; ++i) requests.push_back(GreedyRequest(brief[i * 4].prompt, 24));
  const std::vector<GreedyCase> lengthy = ReadGreedyCases("greedy_long.json", 20);
  for (size_t i = 0; i < 2; ++i) requests.push_back(GreedyRequest(lengthy[i * 8].prompt, 20));
  return requests;
}

struct Variant {
  std::string drafter = "none";
  int32_t batch = 1;
  int32_t chunk = 1024;
  bool graphs = true;
  CacheDtype cache = CacheDtype::kFp32;
  int32_t draft_length = kDraftLengthFromCheckpoint;
  DType activations = DefaultActivationDtype(TestDeviceKind());
};

std::vector<std::vector<int32_t>> Tokens(const Variant& v) {
  EngineOptions options = DemoEngineOptions(v.batch);
  options.drafter = v.drafter;
  options.prefill_chunk = v.chunk;
  options.max_batched_tokens = 1024;
  options.graphs = v.graphs;
  options.cache_dtype = v.cache;
  options.draft_length = v.draft_length;
  options.activations = v.activations;
  std::vector<std::vector<int32_t>> tokens;
  for (const RunOutput& out : RunRequests(options, Requests())) tokens.push_back(out.tokens);
  return tokens;
}

TEST_CASE("greedy text is the same with and without the drafter", "[drafter]") {
  CHECK(Tokens({.drafter = "dspark"}) == Tokens({.drafter = "none"}));
}

TEST_CASE("greedy text is the same at batch 1 and 16", "[batch]") {
  const auto alone = Tokens({.drafter = "none", .batch = 1});
  CHECK(Tokens({.drafter = "none", .batch = 16}) == alone);
  CHECK(Tokens({.drafter = "dspark", .batch = 16}) == alone);
}

TEST_CASE("greedy text is the same for prefill chunks of 1, 16 and the whole prompt", "[chunk]") {
  const auto whole = Tokens({.drafter = "dspark", .batch = 16});
  CHECK(Tokens({.drafter = "dspark", .batch = 16, .chunk = 16}) == whole);
  CHECK(Tokens({.drafter = "dspark", .batch = 16, .chunk = 1}) == whole);
  CHECK(Tokens({.drafter = "none", .batch = 16, .chunk = 1}) == whole);
}

TEST_CASE("greedy text is the same from replayed graphs and from eager steps", "[graph]") {
  CHECK(Tokens({.drafter = "dspark", .batch = 16, .graphs = false}) ==
        Tokens({.drafter = "dspark", .batch = 16, .graphs = true}));
}

TEST_CASE("greedy text is the same with and without the drafter in every cache dtype", "[cache]") {
  for (const CacheDtype dtype : {CacheDtype::kBf16, CacheDtype::kFp8}) {
    INFO(CacheDtypeName(dtype));
    CHECK(Tokens({.drafter = "dspark", .batch = 16, .cache = dtype}) ==
          Tokens({.drafter = "none", .batch = 16, .cache = dtype}));
  }
}

TEST_CASE("greedy text is the same with and without the drafter in both activation types",
          "[activations]") {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    // That of the device is what the other cases run with.
    if (dtype == DefaultActivationDtype(TestDeviceKind())) continue;
    INFO(ActivationDtypeName(dtype));
    const CacheDtype cache = dtype == DType::kF32 ? CacheDtype::kFp32 : CacheDtype::kBf16;
    CHECK(Tokens({.drafter = "dspark",
                  .batch = 16,
                  .chunk = 100,
                  .cache = cache,
                  .activations = dtype}) == Tokens({.drafter = "none",
                                                    .batch = 1,
                                                    .graphs = false,
                                                    .cache = cache,
                                                    .activations = dtype}));
  }
}

TEST_CASE("greedy text is the same for every draft length", "[length]") {
  const auto plain = Tokens({.drafter = "none", .batch = 16});
  for (const int32_t k : {1, 3}) {
    INFO("draft length " << k);
    CHECK(Tokens({.drafter = "dspark", .batch = 16, .draft_length = k}) == plain);
  }
}

}  // namespace
}  // namespace firesteel
