// The demo checkpoint with bf16 activations against the fp32 reference.
//
// A bf16 store is off by at most u = 2^-9 of its value, by u / sqrt(3) on average. A row passes about five stores on its way
// through a sublayer (normed input, projection, attention or gated product, output, the sum), twelve sublayers stand before
// the last features, and the errors are independent: sqrt(60) u / sqrt(3) ~ 9e-3 of the norm if a sublayer's output were all
// there is. The residual streams it is added to stay fp32, so this is a bound and not an estimate (the rows of the short
// cases are off by about half of it). The final norm and the head's input are two stores more.
//
// Where a router's or the indexer's scores are nearly tied, bf16 may choose otherwise, and such a row moves by far more than
// its roundings. So the bounds are on the median row, with a share of rows that may lie beyond three times as much.
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops/verify/sampling_math.h"
#include "tests/support/catch.h"
#include "tests/support/engine_runner.h"
#include "tests/support/golden.h"
#include "tests/support/rank_harness.h"

namespace firesteel {
namespace {

// Of a row, relative to the reference row's norm.
struct RowTolerance {
  double median;
  double beyond;  // share of rows that may be off by more than three times `median`
};
constexpr RowTolerance kFeatures = {9e-3, 0.25};
constexpr RowTolerance kLogits = {1e-2, 0.25};
// Three stages, six sublayers: sqrt(30) u / sqrt(3) and the head's two.
constexpr RowTolerance kDraftBaseLogits = {7e-3, 0.25};
// Sums over hidden + rank values of a block's rows, all blocks together: their average is what is left of the roundings.
constexpr double kConfidence = 1e-2;
// Shares of all cases together that may differ: positions whose best two logits are closer than the above moves them.
constexpr double kArgmax = 0.01;
constexpr double kDraftTokens = 0.05;

std::vector<double> RowErrors(std::span<const float> found, std::span<const float> needed,
                              size_t cols) {
  FIRESTEEL_CHECK(found.size() == needed.size() && found.size() % cols == 0, "sizes differ");
  std::vector<double> errors;
  for (size_t at = 0; at < found.size(); at += cols) {
    errors.push_back(RelativeDifference(found.subspan(at, cols), needed.subspan(at, cols)));
  }
  std::sort(errors.begin(), errors.end());
  return errors;
}

void CheckRows(const std::vector<double>& errors, const RowTolerance& tolerance) {
  const double median = errors[errors.size() / 2];
  const auto beyond = std::count_if(errors.begin(), errors.end(),
                                    [&](double e) { return !(e <= 3.0 * tolerance.median); });
  INFO("median " << median << ", " << beyond << " of " << errors.size()
                 << " rows beyond, the largest " << errors.back());
  CHECK(median <= tolerance.median);
  CHECK(static_cast<double>(beyond) <= tolerance.beyond * static_cast<double>(errors.size()));
}

template <typename T>
double ShareThatDiffers(const std::vector<T>& found, const std::vector<T>& needed) {
  FIRESTEEL_CHECK(found.size() == needed.size(), "sizes differ");
  size_t different = 0;
  for (size_t i = 0; i < found.size(); ++i) different += found[i] != needed[i] ? 1 : 0;
  return static_cast<double>(different) / static_cast<double>(found.size());
}

EngineOptions Bf16Options() {
  EngineOptions options = DemoEngineOptions(100);
  options.max_batched_tokens = 600;
  options.activations = DType::kBf16;
  return options;
}

TEST_CASE("the target with bf16 activations stays within its roundings of the reference",
          "[demo_v4_bf16]") {
  const GoldenTensors golden(GoldenDir("demo_v4") + "/golden.safetensors");
  const nlohmann::json cases = ReadJson(GoldenDir("demo_v4") + "/golden.json")["cases"];
  RankHarness harness(Bf16Options());
  REQUIRE(harness.state().info().model.activations == "bf16");
  const int32_t vocab = harness.state().info().model.vocab_size;
  std::vector<int32_t> found, needed;
  for (const auto& c : cases) {
    const std::string name = c["name"];
    const int64_t last = c["last"];
    INFO(name);
    const RankHarness::Pass pass =
        harness.RunTarget(0, c["token_ids"].get<std::vector<int32_t>>(), 0);
    const std::vector<float> features = golden.Floats(name + ".features_last");
    const int64_t cols = static_cast<int64_t>(features.size()) / last;
    CheckRows(RowErrors(LastRows(pass.features, cols, last), features, static_cast<size_t>(cols)),
              kFeatures);
    CheckRows(RowErrors(LastRows(pass.logits, vocab, last), golden.Floats(name + ".logits_last"),
                        static_cast<size_t>(vocab)),
              kLogits);
    const std::vector<int32_t> argmax = golden.Ints(name + ".argmax");
    needed.insert(needed.end(), argmax.begin(), argmax.end());
    for (size_t p = 0; p < argmax.size(); ++p) {
      found.push_back(ArgMax(pass.logits.data() + p * static_cast<size_t>(vocab), vocab));
    }
  }
  CHECK(ShareThatDiffers(found, needed) <= kArgmax);
}

TEST_CASE("draft blocks with bf16 activations stay within their roundings of the reference",
          "[demo_v4_bf16]") {
  const GoldenTensors golden(GoldenDir("demo_v4") + "/golden.safetensors");
  const nlohmann::json cases = ReadJson(GoldenDir("demo_v4") + "/golden.json")["cases"];
  RankHarness harness(Bf16Options());
  const size_t vocab = static_cast<size_t>(harness.state().info().model.vocab_size);
  std::vector<double> base_errors;
  std::vector<int32_t> tokens, needed_tokens;
  std::vector<float> confidence, needed_confidence;
  for (const auto& c : cases) {
    const std::string name = c["name"];
    const std::vector<int32_t> prompt = c["token_ids"];
    const std::vector<float> base = golden.Floats(name + ".draft_base_logits");
    size_t at = 0;
    for (const int32_t anchor : c["anchors"].get<std::vector<int32_t>>()) {
      const RankHarness::Proposal found = harness.Propose(1, prompt, anchor, 0);
      if (at < base.size()) {
        const size_t count = found.base_logits.size();
        for (const double e :
             RowErrors(found.base_logits, std::span<const float>(base).subspan(at, count), vocab)) {
          base_errors.push_back(e);
        }
        at += count;
      }
      tokens.insert(tokens.end(), found.tokens.begin(), found.tokens.end());
      confidence.insert(confidence.end(), found.confidence.begin(), found.confidence.end());
    }
    const std::vector<int32_t> case_tokens = golden.Ints(name + ".draft_tokens");
    needed_tokens.insert(needed_tokens.end(), case_tokens.begin(), case_tokens.end());
    const std::vector<float> case_confidence = golden.Floats(name + ".confidence_logits");
    needed_confidence.insert(needed_confidence.end(), case_confidence.begin(),
                             case_confidence.end());
  }
  std::sort(base_errors.begin(), base_errors.end());
  CheckRows(base_errors, kDraftBaseLogits);
  CHECK(ShareThatDiffers(tokens, needed_tokens) <= kDraftTokens);
  CHECK(RelativeDifference(confidence, needed_confidence) <= kConfidence);
}

}  // namespace
}  // namespace firesteel
