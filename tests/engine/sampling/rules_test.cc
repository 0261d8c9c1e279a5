// Sampling options on the demo model: greedy outputs do not depend on speculation or the batch, seeded ones not on their
// neighbours, and neither on prefill chunks, preemption or the prefix cache.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/engine/sampling/sampling_support.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kOutput = 32;

struct NamedRequest {
  std::string name;
  RunRequest request;
};

// Each rule on two prompts. What bias, bad words and min_tokens forbid is taken from the plain greedy text, so that they
// bite. The plain requests come first.
std::vector<NamedRequest> GreedyRequests() {
  const std::vector<GreedyCase> cases = ReadGreedyCases("greedy.json", kOutput);
  std::vector<NamedRequest> requests;
  const auto add = [&](const std::string& name, auto change) {
    for (const size_t i : {size_t{3}, size_t{21}}) {
      RunRequest request = GreedyRequest(cases[i].prompt, kOutput);
      request.sampling.logprobs = 3;
      change(cases[i].output, &request.sampling);
      requests.push_back({name, std::move(request)});
    }
  };
  using Tokens = std::vector<int32_t>;
  add("plain", [](const Tokens&, SamplingParams*) {});
  add("repetition", [](const Tokens&, SamplingParams* p) { p->repetition_penalty = 1.3F; });
  add("presence", [](const Tokens&, SamplingParams* p) { p->presence_penalty = 1.5F; });
  add("frequency", [](const Tokens&, SamplingParams* p) { p->frequency_penalty = 0.9F; });
  add("bias", [](const Tokens& out, SamplingParams* p) {
    p->logit_bias = {{out[4], -100.0F}, {out[9], -3.0F}, {out[2], 2.0F}};
  });
  add("bad words", [](const Tokens& out, SamplingParams* p) {
    p->bad_words = {{out[5]}, {out[1], out[2]}, {out[10], out[11], out[12]}};
  });
  add("min tokens", [](const Tokens&, SamplingParams* p) {
    p->logit_bias = {{1, 30.0F}};  // would end the text at once
    p->min_tokens = 20;
  });
  add("all", [](const Tokens& out, SamplingParams* p) {
    p->repetition_penalty = 1.1F;
    p->presence_penalty = 0.3F;
    p->frequency_penalty = 0.2F;
    p->logit_bias = {{out[4], -5.0F}};
    p->bad_words = {{out[5]}, {out[1], out[2]}};
    p->min_tokens = 24;
  });
  return requests;
}

std::vector<RunRequest> Plain(const std::vector<NamedRequest>& named) {
  std::vector<RunRequest> requests;
  for (const NamedRequest& n : named) requests.push_back(n.request);
  return requests;
}

TEST_CASE("greedy text and log-probabilities under every rule do not depend on speculation",
          "[greedy]") {
  const std::vector<NamedRequest> requests = GreedyRequests();
  const std::vector<RunOutput> wanted = RunOn({.drafter = "none", .batch = 1}, Plain(requests));
  int64_t accepted = 0;
  for (const SamplingVariant& v : {SamplingVariant{.drafter = "none", .batch = 16},
                                   SamplingVariant{.batch = 1}, SamplingVariant{.batch = 16}}) {
    const std::vector<RunOutput> found = RunOn(v, Plain(requests));
    for (size_t i = 0; i < requests.size(); ++i) {
      INFO(requests[i].name << " " << i % 2 << ", drafter " << v.drafter << ", batch " << v.batch);
      CHECK(SameOutput(found[i], wanted[i]));
      for (const int32_t a : found[i].accepted_per_step) accepted += a;
    }
  }
  CHECK(accepted > 100);
  for (size_t i = 0; i < requests.size(); ++i) {
    INFO(requests[i].name << " " << i % 2);
    if (i >= 2) CHECK(wanted[i].tokens != wanted[i % 2].tokens);
    REQUIRE(wanted[i].logprobs.size() == wanted[i].tokens.size());
    for (size_t t = 0; t < wanted[i].tokens.size(); ++t) {
      CHECK(wanted[i].logprobs[t].token == wanted[i].tokens[t]);
      CHECK(wanted[i].logprobs[t].logprob < 0.0F);
      CHECK(wanted[i].logprobs[t].top.size() == 3);
    }
  }
}

TEST_CASE("greedy text obeys its rules", "[greedy]") {
  const std::vector<NamedRequest> requests = GreedyRequests();
  const std::vector<RunOutput> found = RunOn({}, Plain(requests));
  for (size_t i = 0; i < requests.size(); ++i) {
    INFO(requests[i].name << " " << i % 2);
    const std::vector<int32_t>& tokens = found[i].tokens;
    for (const std::vector<int32_t>& word : requests[i].request.sampling.bad_words) {
      CHECK(std::search(tokens.begin(), tokens.end(), word.begin(), word.end()) == tokens.end());
    }
    if (requests[i].name == "min tokens") {
      CHECK(tokens.size() == 21);
      CHECK(tokens.back() == 1);
    }
  }
}

RunRequest SeededRequest(size_t which, uint64_t seed) {
  const std::vector<GreedyCase> cases = ReadGreedyCases("greedy.json", kOutput);
  RunRequest request = GreedyRequest(cases[which].prompt, kOutput);
  SamplingParams& p = request.sampling;
  p.temperature = 0.8F;
  p.top_p = 0.9F;
  p.top_k = 40;
  p.min_p = 0.02F;
  p.presence_penalty = 0.4F;
  p.frequency_penalty = 0.2F;
  p.repetition_penalty = 1.05F;
  p.logprobs = 2;
  p.seed = seed;
  return request;
}

TEST_CASE("a seeded request gets the same text alone, among others and for any prefill chunk",
          "[seeded]") {
  const std::vector<RunRequest> alone = {SeededRequest(7, 1234)};
  const RunOutput wanted = RunOn({.batch = 1}, alone)[0];
  CHECK(wanted.tokens.size() > 10);
  CHECK(wanted.tokens != RunOn({.batch = 1}, {SeededRequest(7, 1235)})[0].tokens);
  std::vector<RunRequest> among;
  for (size_t i = 0; i < 4; ++i) among.push_back(SeededRequest(10 + i, i));
  among.push_back(alone[0]);
  for (size_t i = 0; i < 4; ++i) {
    among.push_back(SeededRequest(20 + i, i));
    among.back().sampling.temperature = i % 2 == 0 ? 0.0F : 1.2F;
  }
  CHECK(SameOutput(RunOn({}, among)[4], wanted));
  CHECK(SameOutput(RunOn({.chunk = 1}, alone)[0], wanted));
  CHECK(SameOutput(RunOn({.chunk = 1}, among)[4], wanted));
}

std::vector<RunRequest> LongRequests(bool score_prompts) {
  std::vector<RunRequest> requests;
  for (const GreedyCase& c : ReadGreedyCases("greedy_long.json", 48)) {
    if (requests.size() == 2) break;
    requests.push_back(GreedyRequest(c.prompt, 48));
    SamplingParams& p = requests.back().sampling;
    p.ignore_eos = true;
    p.repetition_penalty = 1.15F;
    p.frequency_penalty = 0.3F;
    p.bad_words = {{c.output[2], c.output[3]}};
    p.logprobs = 1;
    if (score_prompts) p.prompt_logprobs = 1;
  }
  return requests;
}

TEST_CASE("preempted sequences with penalties keep their text and log-probabilities",
          "[preemption]") {
  struct Case {
    std::string drafter;
    bool score_prompts;
  };
  // With drafts, the older one is done before a scored prompt of the younger one holds blocks.
  for (const Case& c : {Case{"none", true}, Case{"none", false}, Case{"dspark", false}}) {
    INFO(c.drafter << (c.score_prompts ? ", scored prompts" : ""));
    const std::vector<RunRequest> requests = LongRequests(c.score_prompts);
    const std::vector<RunOutput> wanted =
        RunOn({.drafter = "none", .batch = 2, .prefix_cache = false}, requests);
    EngineStats stats;
    const auto engine = OpenDemo({.drafter = c.drafter, .batch = 2, .cache_tokens = 9 * 128});
    const std::vector<RunOutput> found = RunRequests(*engine, requests, &stats);
    CHECK(stats.preemptions > 0);
    CHECK(stats.prefix_hits == 0);
    for (size_t i = 0; i < 2; ++i) CHECK(SameOutput(found[i], wanted[i]));
  }
}

TEST_CASE("only requests whose rules need every row do without prefix hits", "[prefix]") {
  const auto engine = OpenDemo({.batch = 1});
  std::vector<RunRequest> request = {LongRequests(true)[0]};
  EngineStats first;
  EngineStats again;
  const RunOutput cold = RunRequests(*engine, request, &first)[0];
  CHECK(SameOutput(RunRequests(*engine, request, &again)[0], cold));
  CHECK(again.prefix_hits == 0);
  SamplingParams cheap = request[0].sampling;
  cheap.repetition_penalty = 1.0F;
  cheap.frequency_penalty = 0.0F;
  cheap.prompt_logprobs = -1;
  cheap.bad_words = {{request[0].prompt[5]}};
  cheap.logit_bias = {{9, 1.0F}};
  request[0].sampling = cheap;
  EngineStats hit;
  const RunOutput warm = RunRequests(*engine, request, &hit)[0];
  CHECK(hit.prefix_hits > 0);
  CHECK(SameOutput(warm, RunOn({.batch = 1, .prefix_cache = false}, request)[0]));
}

}  // namespace
}  // namespace firesteel
