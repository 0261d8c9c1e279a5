// Requests that are preempted for want of cache blocks and start again get the text they would have had.
#include <memory>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/engine_runner.h"

namespace firesteel {
namespace {

// Two long prompts that begin alike.
std::vector<RunRequest> Requests() {
  std::vector<RunRequest> requests;
  for (const GreedyCase& c : ReadGreedyCases("greedy_long.json", 48)) {
    if (requests.size() == 2) break;
    requests.push_back(GreedyRequest(c.prompt, 48));
    requests.back().sampling.ignore_eos = true;
  }
  return requests;
}

std::vector<std::vector<int32_t>> Tokens(const std::string& drafter, bool prefix_cache,
                                         int64_t cache_tokens, EngineStats* stats) {
  EngineOptions options = DemoEngineOptions(2);
  options.drafter = drafter;
  options.prefix_cache = prefix_cache;
  options.cache_tokens = cache_tokens;
  options.activations = DefaultActivationDtype(options.device);
  Result<std::unique_ptr<Engine>> engine = Engine::Create(options);
  FIRESTEEL_CHECK(engine.ok(), engine.status().ToString());
  std::vector<std::vector<int32_t>> tokens;
  for (const RunOutput& out : RunRequests(**engine, Requests(), stats)) {
    tokens.push_back(out.tokens);
  }
  return tokens;
}

TEST_CASE("greedy text is the same when sequences are preempted", "[preemption]") {
  EngineStats roomy;
  const auto plain = Tokens("none", false, 0, &roomy);
  REQUIRE(roomy.preemptions == 0);
  for (const std::string drafter : {"none", "dspark"}) {
    for (const bool prefix_cache : {false, true}) {
      INFO(drafter << (prefix_cache ? ", prefix cache" : ""));
      EngineStats stats;
      // Prompts of 477 and 498 tokens take 4 and 5 blocks; then the older one grows into its fifth.
      CHECK(Tokens(drafter, prefix_cache, 9 * 128, &stats) == plain);
      // With the cache, a second request that comes a step later shares blocks instead, and all fit.
      CHECK((stats.preemptions > 0 || (prefix_cache && stats.prefix_hits > 0)));
      CHECK(stats.blocks_free == stats.blocks_total);
    }
  }
}

}  // namespace
}  // namespace firesteel
