// A random DeepSeek-V4 with YaRN against an independent implementation; tolerances from the golden folder's README.
#include <algorithm>
#include <deque>
#include <string>

#include "engine/models/deepseek/deepseek_model.h"
#include "kernels/ops/verify/sampling_math.h"
#include "tests/support/catch.h"
#include "tests/support/device_memory.h"
#include "tests/support/golden.h"
#include "tests/support/rank_harness.h"
#include "tests/support/test_environment.h"

namespace firesteel {
namespace {

constexpr const char* kFolder = "deepseek_v4_yarn_tiny";
constexpr double kTolerance = 5e-4;
constexpr int32_t kMaxRows = 330;

EngineOptions YarnOptions() {
  EngineOptions options;
  options.model_dir = GoldenDir(kFolder);
  options.device = TestDeviceKind();
  options.drafter = "none";
  options.max_sequences = kMaxRows;  // one logit row per slot without a drafter
  options.max_batched_tokens = kMaxRows;
  options.max_model_len = 512;
  return options;
}

// Buffers that the layers fill while a pass runs.
struct LayerTrace {
  LayerTrace(Device& device, const DeepseekConfig& c, int64_t rows)
      : experts(device, rows * c.experts_per_token),
        entries(device, rows * 128),
        features(device, rows * c.hidden) {}
  DeviceBuffer<int32_t> experts;
  DeviceBuffer<int32_t> entries;
  DeviceBuffer<float> features;
};

class Traces {
 public:
  Traces(RankHarness& harness, int64_t rows)
      : model_(static_cast<DeepseekModel&>(harness.state().target())) {
    for (int32_t l = 0; l < model_.config().layers; ++l) {
      LayerTrace& trace = layers_.emplace_back(harness.state().device(), model_.config(), rows);
      model_.layer_for_test(l).set_trace(
          {trace.experts.data(), trace.entries.data(), trace.features.data()});
    }
  }
  ~Traces() {
    for (int32_t l = 0; l < model_.config().layers; ++l) {
      model_.layer_for_test(l).set_trace({});
    }
  }
  Traces(const Traces&) = delete;
  Traces& operator=(const Traces&) = delete;

  const LayerTrace& layer(size_t index) const { return layers_[index]; }

 private:
  DeepseekModel& model_;
  std::deque<LayerTrace> layers_;
};

struct Case {
  std::string name;
  std::vector<int32_t> tokens;
  std::vector<int32_t> continuation;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const nlohmann::json golden = ReadJson(GoldenDir(kFolder) + "/golden.json");
  for (const auto& c : golden["cases"]) {
    cases.push_back({c["name"], c["token_ids"], c["greedy_continuation"]});
  }
  FIRESTEEL_CHECK(!cases.empty(), "golden.json has no cases");
  return cases;
}

TEST_CASE("rope frequencies follow YaRN only where a layer has a compressor", "[yarn]") {
  const GoldenTensors golden(GoldenDir(kFolder) + "/golden.safetensors");
  Result<ModelConfig> text = ReadModelConfig(GoldenDir(kFolder));
  REQUIRE(text.ok());
  Result<DeepseekConfig> config = ParseDeepseekConfig(*text);
  REQUIRE(config.ok());
  CHECK(RelativeDifference(RopeFrequencies(*config, true), golden.Floats("compress_inv_freq")) <
        1e-6);
  CHECK(RelativeDifference(RopeFrequencies(*config, false), golden.Floats("main_inv_freq")) < 1e-6);
}

TEST_CASE("logits, features, experts and index choices match the reference", "[yarn]") {
  const GoldenTensors golden(GoldenDir(kFolder) + "/golden.safetensors");
  RankHarness harness(YarnOptions());
  auto& model = static_cast<DeepseekModel&>(harness.state().target());
  const DeepseekConfig& config = model.config();
  for (const Case& c : Cases()) {
    INFO(c.name);
    const size_t rows = c.tokens.size();
    const size_t top_k = static_cast<size_t>(config.experts_per_token);
    const Traces traces(harness, static_cast<int64_t>(rows));
    const RankHarness::Pass pass = harness.RunTarget(0, c.tokens, 0);
    CHECK(MaxAbsDifference(LastRows(pass.logits, config.vocab, 8),
                           golden.Floats(c.name + ".logits_last"), nullptr) <= kTolerance);
    const std::vector<int32_t> argmax = golden.Ints(c.name + ".argmax");
    for (size_t p = 0; p < rows; ++p) {
      INFO("position " << p);
      REQUIRE(ArgMax(pass.logits.data() + p * static_cast<size_t>(config.vocab), config.vocab) ==
              argmax[p]);
    }
    const std::vector<float> features = golden.Floats(c.name + ".features_last");
    const std::vector<int32_t> experts = golden.Ints(c.name + ".experts");
    const size_t hidden = static_cast<size_t>(config.hidden);
    for (size_t l = 0; l < static_cast<size_t>(config.layers); ++l) {
      INFO("layer " << l);
      const std::vector<float> traced_features = traces.layer(l).features.Read();
      const std::vector<int32_t> traced_experts = traces.layer(l).experts.Read();
      for (size_t i = 0; i < 8; ++i) {
        const auto found =
            std::span<const float>(traced_features).subspan((rows - 8 + i) * hidden, hidden);
        const auto needed = std::span<const float>(features).subspan(
            (i * static_cast<size_t>(config.layers) + l) * hidden, hidden);
        REQUIRE(MaxAbsDifference(found, needed, nullptr) <= kTolerance);
      }
      for (size_t p = 0; p < rows; ++p) {
        std::vector<int32_t> found(traced_experts.begin() + static_cast<int64_t>(p * top_k),
                                   traced_experts.begin() + static_cast<int64_t>((p + 1) * top_k));
        std::sort(found.begin(), found.end());
        const auto needed = experts.begin() + static_cast<int64_t>((l * rows + p) * top_k);
        REQUIRE(std::equal(found.begin(), found.end(), needed));
      }
    }
    const std::vector<int32_t> index = golden.Ints(c.name + ".index_topk");
    const size_t width = static_cast<size_t>(golden.Shape(c.name + ".index_topk")[2]);
    for (size_t i = 0; i < 2; ++i) {
      const size_t layer = i == 0 ? 1 : 3;
      const std::vector<int32_t> traced_entries = traces.layer(layer).entries.Read();
      for (size_t p = 0; p < rows; ++p) {
        INFO("index of layer " << layer << ", position " << p);
        const auto needed = index.begin() + static_cast<int64_t>((i * rows + p) * width);
        REQUIRE(std::equal(needed, needed + static_cast<int64_t>(width),
                           traced_entries.begin() + static_cast<int64_t>(p * 128)));
      }
    }
  }
}

TEST_CASE("greedy continuation of the YaRN checkpoint matches the reference", "[yarn]") {
  RankHarness harness(YarnOptions());
  const int32_t vocab = harness.state().info().model.vocab_size;
  for (const Case& c : Cases()) {
    INFO(c.name);
    std::vector<int32_t> tokens = c.tokens;
    std::vector<int32_t> found;
    while (found.size() < c.continuation.size()) {
      const RankHarness::Pass pass = harness.RunTarget(0, tokens, 64);
      found.push_back(ArgMax(LastRows(pass.logits, vocab, 1).data(), vocab));
      tokens.push_back(found.back());
    }
    CHECK(found == c.continuation);
  }
}

}  // namespace
}  // namespace firesteel
