// Log-probabilities of prompts: independent of chunks, and those of the reference implementation.
#include <cmath>
#include <vector>

#include "tests/engine/sampling/sampling_support.h"
#include "tests/support/catch.h"
#include "tests/support/golden.h"

namespace firesteel {
namespace {

TEST_CASE("prompt log-probabilities have the same bits for any prefill chunk and neighbours",
          "[prompt]") {
  std::vector<RunRequest> requests;
  std::vector<GreedyCase> cases = ReadGreedyCases("greedy.json", 8);
  cases.insert(cases.begin(), ReadGreedyCases("greedy_long.json", 8)[0]);
  for (size_t i = 0; i < 3; ++i) {
    requests.push_back(GreedyRequest(cases[i].prompt, 8));
    requests.back().sampling.prompt_logprobs = static_cast<int32_t>(requests.size()) * 2;
  }
  requests.push_back(GreedyRequest(requests[0].prompt, 8));
  const std::vector<RunOutput> wanted = RunOn({.drafter = "none", .batch = 1}, requests);
  CHECK(wanted[3].prompt_logprobs.empty());
  CHECK(wanted[3].tokens == wanted[0].tokens);
  for (size_t i = 0; i < 3; ++i) {
    const std::vector<int32_t>& prompt = requests[i].prompt;
    REQUIRE(wanted[i].prompt_logprobs.size() == prompt.size() - 1);
    for (size_t p = 1; p < prompt.size(); ++p) {
      const TokenLogprobs& scored = wanted[i].prompt_logprobs[p - 1];
      CHECK(scored.token == prompt[p]);
      CHECK(scored.logprob < 0.0F);
      CHECK(scored.top.size() == 2 * (i + 1));
    }
  }
  for (const int32_t chunk : {1, 16, 1024}) {
    const std::vector<RunOutput> found = RunOn({.batch = 4, .chunk = chunk}, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      INFO("chunk " << chunk << ", request " << i);
      CHECK(SameOutput(found[i], wanted[i]));
    }
  }
}

TEST_CASE("prompt log-probabilities are those of the reference's logits", "[prompt]") {
  const GoldenTensors golden(GoldenDir("demo_v4") + "/golden.safetensors");
  const nlohmann::json cases = ReadJson(GoldenDir("demo_v4") + "/golden.json")["cases"];
  const auto& item = cases[0];
  REQUIRE(item["name"] == "short");
  const std::vector<int32_t> tokens = item["token_ids"];
  const auto last = item["last"].get<size_t>();
  RunRequest request = GreedyRequest(tokens, 1);
  request.sampling.prompt_logprobs = 0;
  const RunOutput out = RunOn({.batch = 1}, {request})[0];
  REQUIRE(out.prompt_logprobs.size() == tokens.size() - 1);
  const std::vector<float> logits = golden.Floats("short.logits_last");
  const size_t vocab = logits.size() / last;
  REQUIRE(last > 1);
  for (size_t row = 0; row + 1 < last; ++row) {
    const size_t position = tokens.size() - last + row + 1;
    const float* l = logits.data() + row * vocab;
    double sum = 0.0;
    for (size_t t = 0; t < vocab; ++t) sum += std::exp(static_cast<double>(l[t]));
    const double wanted =
        static_cast<double>(l[static_cast<size_t>(tokens[position])]) - std::log(sum);
    INFO("position " << position);
    CHECK(std::fabs(static_cast<double>(out.prompt_logprobs[position - 1].logprob) - wanted) <=
          2e-4);
  }
}

}  // namespace
}  // namespace firesteel
