// The factors that may not change greedy text, crossed: drafter, batch, prefill chunk, prefix cold and hit, forced
// preemption, replayed and eager steps, per cache dtype. A seeded sample of the full product, so that the slow tests end.
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/engine_runner.h"

namespace firesteel {
namespace {

constexpr int kSamplesPerDtype = 16;
constexpr int32_t kTokens = 20;
constexpr int32_t kMaxModelLen = 768;

std::vector<RunRequest> Requests() {
  std::vector<RunRequest> requests;
  const std::vector<GreedyCase> brief = ReadGreedyCases("greedy.json", kTokens);
  for (size_t i = 0; i < brief.size(); i += 8) {
    requests.push_back(GreedyRequest(brief[i].prompt, kTokens));
  }
  const std::vector<GreedyCase> lengthy = ReadGreedyCases("greedy_long.json", kTokens);
  for (size_t i = 0; i < lengthy.size(); i += 4) {
    requests.push_back(GreedyRequest(lengthy[i].prompt, kTokens));
  }
  return requests;
}

struct Combination {
  std::string drafter;
  int32_t batch;
  int32_t chunk;
  bool prefix_cache;
  bool preempt;
  bool graphs;
};

std::vector<std::vector<int32_t>> Tokens(const std::vector<RunOutput>& outputs) {
  std::vector<std::vector<int32_t>> tokens;
  for (const RunOutput& out : outputs) tokens.push_back(out.tokens);
  return tokens;
}

EngineOptions OptionsFor(const Combination& c, CacheDtype dtype) {
  EngineOptions options = DemoEngineOptions(c.batch);
  options.drafter = c.drafter;
  options.prefill_chunk = c.chunk;
  options.max_batched_tokens = 1024;
  options.max_model_len = kMaxModelLen;
  options.prefix_cache = c.prefix_cache;
  options.graphs = c.graphs;
  options.cache_dtype = dtype;
  // Room for one sequence of full length and a little: several at once must preempt each other.
  if (c.preempt) options.cache_tokens = kMaxModelLen + 256;
  return options;
}

TEST_CASE("greedy text is the same over a sample of all factors crossed", "[matrix]") {
  const std::vector<RunRequest> requests = Requests();
  int64_t hits = 0;
  int64_t preemptions = 0;
  for (const CacheDtype dtype : {CacheDtype::kFp32, CacheDtype::kBf16, CacheDtype::kFp8}) {
    const Combination plain{"none", 1, 1024, false, false, false};
    const auto needed = Tokens(RunRequests(OptionsFor(plain, dtype), requests));
    std::mt19937 random(2026);
    const auto pick = [&](auto... values) {
      const std::vector<std::common_type_t<decltype(values)...>> list = {values...};
      return list[random() % list.size()];
    };
    for (int i = 0; i < kSamplesPerDtype; ++i) {
      const Combination c{i % 2 == 0 ? "dspark" : "none",
                          pick(1, 7, 64),
                          pick(1, 16, 100, 1024),
                          pick(false, true),
                          pick(false, true),
                          pick(false, true)};
      INFO(CacheDtypeName(dtype) << " " << c.drafter << " batch " << c.batch << " chunk " << c.chunk
                                 << " prefix " << c.prefix_cache << " preempt " << c.preempt
                                 << " graphs " << c.graphs);
      Result<std::unique_ptr<Engine>> engine = Engine::Create(OptionsFor(c, dtype));
      REQUIRE(engine.ok());
      EngineStats stats;
      CHECK(Tokens(RunRequests(**engine, requests, &stats)) == needed);
      // The second pass hits what the first one left in the cache.
      if (c.prefix_cache) CHECK(Tokens(RunRequests(**engine, requests, &stats)) == needed);
      hits += stats.prefix_hits;
      preemptions += stats.preemptions;
      CHECK(stats.blocks_free == stats.blocks_total);
    }
  }
  CHECK(hits > 0);
  CHECK(preemptions > 0);
}

}  // namespace
}  // namespace firesteel
