// The factors that may not change greedy text, crossed: drafter, batch, prefill chunk, prefix cold and hit, forced
// preemption, replayed and eager steps, per cache dtype. The slow tests run a seeded sample of the full product over some
// prompts. Hidden cases, for runs by hand, take all prompts: [.matrix_pairs] runs about as few combinations as have every
// pair of levels together, [.matrix_full] all of them.
#include <array>
#include <chrono>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/engine_runner.h"

namespace firesteel {
namespace {

constexpr int kSamplesPerDtype = 16;
constexpr int32_t kTokens = 20;
constexpr int32_t kMaxModelLen = 768;
constexpr std::array kDtypes = {CacheDtype::kFp32, CacheDtype::kBf16, CacheDtype::kFp8};

// Every `step`-th prompt; of the long ones, which cost more, every `long_step`-th.
std::vector<RunRequest> Requests(size_t step, size_t long_step) {
  std::vector<RunRequest> requests;
  const std::vector<GreedyCase> brief = ReadGreedyCases("greedy.json", kTokens);
  for (size_t i = 0; i < brief.size(); i += step) {
    requests.push_back(GreedyRequest(brief[i].prompt, kTokens));
  }
  const std::vector<GreedyCase> lengthy = ReadGreedyCases("greedy_long.json", kTokens);
  for (size_t i = 0; i < lengthy.size(); i += long_step) {
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

Combination Plain() { return {"none", 1, 1024, false, false, false}; }

std::vector<Combination> FullProduct() {
  std::vector<Combination> all;
  for (const std::string drafter : {"dspark", "none"}) {
    for (const int32_t batch : {1, 7, 64}) {
      for (const int32_t chunk : {1, 16, 100, 1024}) {
        for (const int flags : {0, 1, 2, 3, 4, 5, 6, 7}) {
          all.push_back(
              {drafter, batch, chunk, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0});
        }
      }
    }
  }
  return all;
}

using Pair = std::tuple<size_t, int32_t, size_t, int32_t>;

// The pairs of (factor, level) that are in a combination.
std::vector<Pair> Pairs(const Combination& c) {
  const std::array<int32_t, 6> levels = {
      c.drafter == "none" ? 0 : 1, c.batch,           c.chunk,
      c.prefix_cache ? 1 : 0,      c.preempt ? 1 : 0, c.graphs ? 1 : 0};
  std::vector<Pair> pairs;
  for (size_t i = 0; i < levels.size(); ++i) {
    for (size_t j = i + 1; j < levels.size(); ++j) {
      pairs.emplace_back(i, levels[i], j, levels[j]);
    }
  }
  return pairs;
}

// Combinations that have every pair of levels together; greedy, so about as few as possible.
std::vector<Combination> CoverPairs() {
  const std::vector<Combination> all = FullProduct();
  std::set<Pair> missing;
  for (const Combination& c : all) {
    for (const Pair& pair : Pairs(c)) missing.insert(pair);
  }
  std::vector<Combination> chosen;
  while (!missing.empty()) {
    size_t best = 0;
    size_t best_count = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      size_t count = 0;
      for (const Pair& pair : Pairs(all[i])) count += missing.count(pair);
      if (count <= best_count) continue;
      best = i;
      best_count = count;
    }
    chosen.push_back(all[best]);
    for (const Pair& pair : Pairs(all[best])) missing.erase(pair);
  }
  return chosen;
}

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
  options.activations = DefaultActivationDtype(options.device);
  // Room for one sequence of full length and a little: several at once must preempt each other.
  if (c.preempt) options.cache_tokens = kMaxModelLen + 256;
  return options;
}

struct Totals {
  int64_t hits = 0;
  int64_t preemptions = 0;
};

// Checks every combination against plain decoding with the same cache dtype.
Totals CheckAll(const std::vector<Combination>& combinations,
                const std::vector<RunRequest>& requests, CacheDtype dtype) {
  const auto needed = Tokens(RunRequests(OptionsFor(Plain(), dtype), requests));
  Totals totals;
  for (const Combination& c : combinations) {
    INFO(CacheDtypeName(dtype) << " " << c.drafter << " batch " << c.batch << " chunk " << c.chunk
                               << " prefix " << c.prefix_cache << " preempt " << c.preempt
                               << " graphs " << c.graphs);
    Result<std::unique_ptr<Engine>> engine = Engine::Create(OptionsFor(c, dtype));
    REQUIRE(engine.ok());
    EngineStats stats;
    CHECK(Tokens(RunRequests(**engine, requests, &stats)) == needed);
    if (c.prefix_cache) {
      // The second pass hits what the first one left in the cache; a cache too small for that has lost it.
      const int64_t cold_hits = stats.prefix_hits;
      CHECK(Tokens(RunRequests(**engine, requests, &stats)) == needed);
      CHECK((c.preempt || stats.prefix_hits > cold_hits));
    }
    totals.hits += stats.prefix_hits;
    totals.preemptions += stats.preemptions;
    CHECK(stats.blocks_free == stats.blocks_total);
  }
  return totals;
}

void CheckOverAllPrompts(const std::vector<Combination>& combinations) {
  const std::vector<RunRequest> requests = Requests(1, 1);
  for (const CacheDtype dtype : kDtypes) {
    const auto start = std::chrono::steady_clock::now();
    const Totals totals = CheckAll(combinations, requests, dtype);
    CHECK(totals.hits > 0);
    CHECK(totals.preemptions > 0);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    WARN(CacheDtypeName(dtype) << ": " << combinations.size() << " combinations of "
                               << requests.size() << " prompts, " << totals.hits
                               << " tokens from the prefix cache, " << totals.preemptions
                               << " preemptions, " << elapsed.count() << " s");
  }
}

TEST_CASE("greedy text is the same over a sample of all factors crossed", "[matrix]") {
  const std::vector<RunRequest> requests = Requests(8, 4);
  Totals totals;
  for (const CacheDtype dtype : kDtypes) {
    std::mt19937 random(2026);
    const auto pick = [&](auto... values) {
      const std::vector<std::common_type_t<decltype(values)...>> list = {values...};
      return list[random() % list.size()];
    };
    std::vector<Combination> sample;
    for (int i = 0; i < kSamplesPerDtype; ++i) {
      sample.push_back({i % 2 == 0 ? "dspark" : "none", pick(1, 7, 64), pick(1, 16, 100, 1024),
                        pick(false, true), pick(false, true), pick(false, true)});
    }
    const Totals of_dtype = CheckAll(sample, requests, dtype);
    totals.hits += of_dtype.hits;
    totals.preemptions += of_dtype.preemptions;
  }
  CHECK(totals.hits > 0);
  CHECK(totals.preemptions > 0);
}

TEST_CASE("greedy text of all prompts is the same for every pair of levels", "[.matrix_pairs]") {
  CheckOverAllPrompts(CoverPairs());
}

TEST_CASE("greedy text of all prompts is the same for all factors crossed", "[.matrix_full]") {
  CheckOverAllPrompts(FullProduct());
}

}  // namespace
}  // namespace firesteel
