// Known wrong variants of the engine, each of which must be caught by the check that guards against it.
#include <unistd.h>
#include <algorithm>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/runtime/engine_factory.h"
#include "tests/support/catch.h"
#include "tests/support/engine_runner.h"
#include "tests/support/golden.h"
#include "tests/support/mutant_device.h"
#include "tests/support/rank_harness.h"
#include "tests/support/test_environment.h"

namespace firesteel {
namespace {

EngineOptions HarnessOptions() {
  EngineOptions options = DemoEngineOptions(100);
  options.max_batched_tokens = 600;
  return options;
}

// Largest deviation of the draft block's logits from the golden ones over the first anchors of every case: the quantity
// that the golden test holds to 2e-4.
double DraftLogitError(RankHarness& harness) {
  const GoldenTensors golden(GoldenDir("demo_v4") + "/golden.safetensors");
  const nlohmann::json cases = ReadJson(GoldenDir("demo_v4") + "/golden.json");
  const size_t vocab = static_cast<size_t>(harness.state().info().model.vocab_size);
  double most = 0.0;
  for (const auto& c : cases["cases"]) {
    const std::string name = c["name"];
    const std::vector<int32_t> tokens = c["token_ids"];
    const std::vector<int32_t> anchors = c["anchors"];
    const std::vector<float> base = golden.Floats(name + ".draft_base_logits");
    const size_t block = 5 * vocab;
    for (size_t a = 0; (a + 1) * block <= base.size(); ++a) {
      const RankHarness::Proposal found = harness.Propose(1, tokens, anchors[a], 0);
      most = std::max(
          most, MaxAbsDifference(found.base_logits,
                                 std::span<const float>(base).subspan(a * block, block), nullptr));
    }
  }
  return most;
}

// Far above the golden tolerance of 2e-4, far below what any of these faults causes.
constexpr double kCaught = 1e-2;

TEST_CASE("the unmutated engine passes the checks that the mutants fail", "[control]") {
  RankHarness harness(HarnessOptions());
  CHECK(DraftLogitError(harness) <= 2e-4);
}

TEST_CASE("a causal draft block is caught by the draft golden", "[causal_block]") {
  KernelTable table = CpuKernels();
  table.sparse_attention = AttendCausallyInDraftBlocks;
  RankHarness harness(HarnessOptions(), CreateMutantDevice(table));
  CHECK(DraftLogitError(harness) > kCaught);
}

TEST_CASE("a padded width taken for the length is caught by the draft golden", "[padded_width]") {
  KernelTable table = CpuKernels();
  table.sparse_attention = AttendToPaddedWidth;
  RankHarness harness(HarnessOptions(), CreateMutantDevice(table));
  CHECK(DraftLogitError(harness) > kCaught);
}

// A copy of the demo checkpoint whose config taps one layer earlier; the weights are linked, not copied.
std::string ShiftedTapCheckpoint() {
  const std::filesystem::path source = TestRoot() + "/configs/demo-v4";
  const std::filesystem::path copy = std::filesystem::temp_directory_path() /
                                     ("firesteel_shifted_tap_" + std::to_string(getpid()));
  std::filesystem::create_directories(copy);
  for (const auto& entry : std::filesystem::directory_iterator(source)) {
    const std::filesystem::path target = copy / entry.path().filename();
    std::filesystem::remove(target);
    if (entry.path().filename() != "config.json") {
      std::filesystem::create_symlink(entry.path(), target);
    }
  }
  nlohmann::json config = ReadJson((source / "config.json").string());
  for (auto& layer : config["dspark_target_layer_ids"]) layer = layer.get<int>() - 1;
  std::ofstream(copy / "config.json") << config;
  return copy.string();
}

TEST_CASE("features captured one layer early are caught by the draft golden", "[capture_layer]") {
  EngineOptions options = HarnessOptions();
  options.model_dir = ShiftedTapCheckpoint();
  {
    RankHarness harness(options);
    CHECK(DraftLogitError(harness) > kCaught);
  }
  std::filesystem::remove_all(options.model_dir);
}

TEST_CASE("accepting drafts after the first mismatch is caught by the greedy golden",
          "[no_break]") {
  const std::vector<GreedyCase> cases = ReadGreedyCases("greedy.json", 160);
  std::vector<RunRequest> requests;
  for (size_t i = 0; i < 4; ++i) requests.push_back(GreedyRequest(cases[i].prompt, 160));
  const EngineOptions options = DemoEngineOptions(4);
  Result<std::unique_ptr<Engine>> engine = CreateEngineOn(
      [&] {
        KernelTable table = CpuKernels();
        table.verify = VerifyWithoutBreak;
        return CreateRankOn(CreateMutantDevice(table), options);
      },
      options);
  REQUIRE(engine.ok());
  const std::vector<RunOutput> outputs = RunRequests(**engine, requests);
  int differing = 0;
  for (size_t i = 0; i < outputs.size(); ++i)
    differing += outputs[i].tokens != cases[i].output ? 1 : 0;
  CHECK(differing > 0);
}

TEST_CASE("a draft window that a prefix hit left stale is caught by the acceptance of each round",
          "[stale_draft_window]") {
  const std::vector<GreedyCase> cases = ReadGreedyCases("greedy_long.json", 8);
  std::vector<RunRequest> requests;
  for (size_t i = 0; i < 4; ++i) requests.push_back(GreedyRequest(cases[i].prompt, 8));
  EngineOptions options = DemoEngineOptions(4);
  options.prefill_chunk = 1024;
  options.max_batched_tokens = 4096;
  Result<std::unique_ptr<Engine>> engine = CreateEngineOn(
      [&] {
        KernelTable table = CpuKernels();
        table.draft_prepare = DraftFromStaleWindowAfterHit;
        return CreateRankOn(CreateMutantDevice(table), options);
      },
      options);
  REQUIRE(engine.ok());
  const std::vector<RunOutput> cold = RunRequests(**engine, requests);
  const std::vector<RunOutput> hit = RunRequests(**engine, requests);
  REQUIRE((*engine)->stats().prefix_hits > 0);
  int same_text = 0;
  int same_acceptance = 0;
  for (size_t i = 0; i < cold.size(); ++i) {
    same_text += cold[i].tokens == hit[i].tokens ? 1 : 0;
    same_acceptance += cold[i].accepted_per_step == hit[i].accepted_per_step ? 1 : 0;
  }
  // Verification hides the fault from the text; only the acceptance shows it.
  CHECK(same_text == 4);
  CHECK(same_acceptance < 4);
}

}  // namespace
}  // namespace firesteel
