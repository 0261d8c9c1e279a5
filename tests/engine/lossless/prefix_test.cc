// Greedy text and every round's acceptance are the same with a prefix-cache hit as without: also the windows of the draft
// stages must be what a cold run leaves.
#include <memory>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/engine_runner.h"

namespace firesteel {
namespace {

constexpr int32_t kOutput = 16;

// Long prompts that begin with the same worked examples.
std::vector<RunRequest> Requests(size_t count) {
  std::vector<RunRequest> requests;
  const std::vector<GreedyCase> cases = ReadGreedyCases("greedy_long.json", kOutput);
  for (size_t i = 0; i < count; ++i) requests.push_back(GreedyRequest(cases[i].prompt, kOutput));
  return requests;
}

struct Variant {
  std::string drafter = "dspark";
  CacheDtype cache = CacheDtype::kFp32;
  int32_t batch = 16;
  int32_t chunk = 1024;
  bool prefix_cache = true;
};

std::unique_ptr<Engine> Open(const Variant& v) {
  EngineOptions options = DemoEngineOptions(v.batch);
  options.drafter = v.drafter;
  options.cache_dtype = v.cache;
  options.activations = DefaultActivationDtype(options.device);
  options.prefill_chunk = v.chunk;
  options.max_batched_tokens = 1024;
  options.prefix_cache = v.prefix_cache;
  Result<std::unique_ptr<Engine>> engine = Engine::Create(options);
  FIRESTEEL_CHECK(engine.ok(), engine.status().ToString());
  return std::move(engine).value();
}

int64_t WholeUnits(const std::vector<RunRequest>& requests) {
  int64_t tokens = 0;
  for (const RunRequest& r : requests) {
    tokens += (static_cast<int64_t>(r.prompt.size()) - 1) / 128 * 128;
  }
  return tokens;
}

bool Same(const std::vector<RunOutput>& a, const std::vector<RunOutput>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].tokens != b[i].tokens || a[i].accepted_per_step != b[i].accepted_per_step) {
      UNSCOPED_INFO("request " << i);
      return false;
    }
  }
  return true;
}

struct Runs {
  std::vector<RunOutput> first;
  std::vector<RunOutput> second;  // finds the prompts of the first run
  int64_t first_hits = 0;
};

// Runs the requests twice on one engine.
Runs RunTwice(const Variant& v, const std::vector<RunRequest>& requests) {
  const std::unique_ptr<Engine> engine = Open(v);
  EngineStats before;
  EngineStats after;
  Runs runs;
  runs.first = RunRequests(*engine, requests, &before);
  runs.second = RunRequests(*engine, requests, &after);
  runs.first_hits = before.prefix_hits;
  int64_t prompt_tokens = 0;
  for (const RunRequest& r : requests) prompt_tokens += static_cast<int64_t>(r.prompt.size());
  CHECK(after.prefix_hits - before.prefix_hits == WholeUnits(requests));
  CHECK(after.prefix_queries - before.prefix_queries == prompt_tokens);
  CHECK(after.blocks_free == after.blocks_total);
  return runs;
}

TEST_CASE("a prefix hit gives the text and the acceptance of a cold run", "[prefix]") {
  for (const std::string drafter : {"none", "dspark"}) {
    for (const CacheDtype cache : {CacheDtype::kFp32, CacheDtype::kFp8}) {
      INFO(drafter << ", " << CacheDtypeName(cache));
      const bool all = drafter == "dspark" && cache == CacheDtype::kFp32;
      const Runs runs = RunTwice({.drafter = drafter, .cache = cache}, Requests(all ? 6 : 3));
      CHECK(Same(runs.first, runs.second));
    }
  }
}

TEST_CASE("a prefix hit does not depend on the batch and the prefill chunks", "[prefix_crossed]") {
  const std::vector<RunRequest> requests = Requests(3);
  const std::vector<RunOutput> cold = RunRequests(*Open({.prefix_cache = false}), requests);
  const Runs alone = RunTwice({.batch = 1}, requests);
  CHECK(alone.first_hits == 2 * 3 * 128);  // one after the other, they share their examples
  CHECK(Same(alone.first, cold));
  CHECK(Same(alone.second, cold));
  const Runs alone_in_chunks = RunTwice({.batch = 1, .chunk = 16}, requests);
  CHECK(Same(alone_in_chunks.first, cold));
  CHECK(Same(alone_in_chunks.second, cold));
  const Runs chunks = RunTwice({.batch = 16, .chunk = 16}, requests);
  CHECK(Same(chunks.first, cold));
  CHECK(Same(chunks.second, cold));
}

TEST_CASE("a conversation continues from the caches of its generated text", "[prefix]") {
  std::vector<RunRequest> requests = Requests(2);
  for (RunRequest& r : requests) r.sampling.max_tokens = 60;
  for (RunRequest& r : requests) r.sampling.ignore_eos = true;
  const std::unique_ptr<Engine> engine = Open({});
  EngineStats before;
  const std::vector<RunOutput> first = RunRequests(*engine, requests, &before);
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<int32_t>& prompt = requests[i].prompt;
    prompt.insert(prompt.end(), first[i].tokens.begin(), first[i].tokens.end());
    requests[i].sampling.max_tokens = kOutput;
  }
  EngineStats after;
  const std::vector<RunOutput> warm = RunRequests(*engine, requests, &after);
  CHECK(after.prefix_hits - before.prefix_hits == WholeUnits(requests));
  CHECK(Same(warm, RunRequests(*Open({.prefix_cache = false}), requests)));
}

}  // namespace
}  // namespace firesteel
