// The demo checkpoint against an independent implementation; tolerances are those of the golden folder's README.
#include <algorithm>
#include <string>

#include "kernels/ops/verify/sampling_math.h"
#include "tests/support/catch.h"
#include "tests/support/engine_runner.h"
#include "tests/support/golden.h"
#include "tests/support/rank_harness.h"

namespace firesteel {
namespace {

constexpr double kLogitTolerance = 2e-4;
constexpr double kFeatureTolerance = 1e-4;

EngineOptions DemoOptions() {
  // 600 logit rows: enough for every position of the long case.
  EngineOptions options = DemoEngineOptions(100);
  options.max_batched_tokens = 600;
  return options;
}

struct Case {
  std::string name;
  std::vector<int32_t> tokens;
  int64_t last;
  std::vector<int32_t> anchors;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const nlohmann::json golden = ReadJson(GoldenDir("demo_v4") + "/golden.json");
  for (const auto& c : golden["cases"]) {
    cases.push_back({c["name"], c["token_ids"], c["last"], c["anchors"]});
  }
  FIRESTEEL_CHECK(!cases.empty(), "golden.json has no cases");
  return cases;
}

TEST_CASE("target logits, argmax and features of the demo checkpoint match the reference",
          "[demo_v4]") {
  const GoldenTensors golden(GoldenDir("demo_v4") + "/golden.safetensors");
  RankHarness harness(DemoOptions());
  const int64_t vocab = harness.state().info().model.vocab_size;
  for (const Case& c : Cases()) {
    for (const int32_t chunk : {0, 16}) {
      INFO(c.name << ", chunk " << chunk);
      const RankHarness::Pass pass = harness.RunTarget(0, c.tokens, chunk);
      size_t where = 0;
      const double error = MaxAbsDifference(LastRows(pass.logits, vocab, c.last),
                                            golden.Floats(c.name + ".logits_last"), &where);
      INFO("largest logit difference at " << where / static_cast<size_t>(vocab) << ", "
                                          << where % static_cast<size_t>(vocab));
      CHECK(error <= kLogitTolerance);
      const std::vector<int32_t> argmax = golden.Ints(c.name + ".argmax");
      int mismatches = 0;
      for (size_t p = 0; p < argmax.size(); ++p) {
        const float* row = pass.logits.data() + static_cast<int64_t>(p) * vocab;
        mismatches += ArgMax(row, static_cast<int32_t>(vocab)) != argmax[p] ? 1 : 0;
      }
      CHECK(mismatches == 0);
      const std::vector<float> features = golden.Floats(c.name + ".features_last");
      const int64_t cols = static_cast<int64_t>(features.size()) / c.last;
      CHECK(RelativeDifference(LastRows(pass.features, cols, c.last), features) <=
            kFeatureTolerance);
    }
  }
}

TEST_CASE("draft blocks of the demo checkpoint match the reference at every anchor", "[demo_v4]") {
  const GoldenTensors golden(GoldenDir("demo_v4") + "/golden.safetensors");
  RankHarness harness(DemoOptions());
  const int64_t vocab = harness.state().info().model.vocab_size;
  for (const Case& c : Cases()) {
    const std::vector<float> base = golden.Floats(c.name + ".draft_base_logits");
    const std::vector<int32_t> tokens = golden.Ints(c.name + ".draft_tokens");
    const std::vector<float> confidence = golden.Floats(c.name + ".confidence_logits");
    const size_t block = tokens.size() / c.anchors.size();
    for (size_t a = 0; a < c.anchors.size(); ++a) {
      INFO(c.name << ", anchor " << c.anchors[a]);
      const RankHarness::Proposal found = harness.Propose(1, c.tokens, c.anchors[a], 0);
      const size_t block_logits = block * static_cast<size_t>(vocab);
      if ((a + 1) * block_logits <= base.size()) {
        const auto needed = std::span<const float>(base).subspan(a * block_logits, block_logits);
        CHECK(MaxAbsDifference(found.base_logits, needed, nullptr) <= kLogitTolerance);
      }
      CHECK(std::equal(found.tokens.begin(), found.tokens.end(),
                       tokens.begin() + static_cast<int64_t>(a * block)));
      const auto needed = std::span<const float>(confidence).subspan(a * block, block);
      CHECK(MaxAbsDifference(found.confidence, needed, nullptr) <= kLogitTolerance);
    }
  }
}

}  // namespace
}  // namespace firesteel
