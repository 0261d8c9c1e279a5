// The step benchmark on a shape of random weights that a test can afford, and on the demo checkpoint.
#include "engine/api/step_bench.h"

#include <cmath>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/engine_runner.h"

namespace firesteel {
namespace {

// Shape "tiny" on one of two ranks: 5 layers of ratio 0, 0, 4, 128, 4, window 32, 32 entries chosen, heads of 128 of which
// 64 are rotated, index keys of 64; 16 experts of 64 columns on this rank, hidden 128, two of them for a row.
constexpr int64_t kLayers = 5;
constexpr int64_t kRecord = 64 + 2 * 64 + 8;  // fp8
constexpr int64_t kIndexRecord = 64 + 4;
constexpr int64_t kExpertBytes = 3 * (128 * 64 / 2 + 128 * 64 / 32);

StepBenchOptions TinyBench() {
  StepBenchOptions bench;
  bench.synthetic = {"tiny", 2, 0};
  bench.repeats = 1;
  return bench;
}

EngineOptions Options(int32_t max_sequences) {
  EngineOptions options;
  options.threads = 2;
  options.max_sequences = max_sequences;
  options.cache_dtype = CacheDtype::kFp8;
  return options;
}

struct Outcome {
  Status status;
  StepBenchMachine machine;
  std::vector<StepBenchRow> rows;
};

Outcome Run(const EngineOptions& options, const StepBenchOptions& bench) {
  Outcome outcome;
  outcome.status =
      RunStepBench(options, bench,
                   {[&](const StepBenchMachine& machine) { outcome.machine = machine; },
                    [&](const StepBenchRow& row) { outcome.rows.push_back(row); }});
  return outcome;
}

int64_t TotalExperts(const StepBenchPart& part, int64_t layers) {
  return std::llround(part.distinct_experts * static_cast<double>(layers));
}

TEST_CASE("a step of random weights is timed at every batch and context", "[step_bench]") {
  StepBenchOptions bench = TinyBench();
  bench.sequences = {1, 3};
  bench.contexts = {20, 300};
  EngineOptions options = Options(3);
  options.activations = GENERATE(DType::kF32, DType::kBf16);
  const Outcome outcome = Run(options, bench);
  INFO(outcome.status.ToString());
  REQUIRE(outcome.status.ok());
  CHECK(outcome.machine.copy_gbps > 0.0);
  CHECK(outcome.machine.activations == ActivationDtypeName(options.activations));
  REQUIRE(outcome.rows.size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    const StepBenchRow& row = outcome.rows[i];
    INFO("row " << i);
    CHECK(row.sequences == bench.sequences[i % 2]);
    CHECK(row.context == bench.contexts[i / 2]);
    CHECK(row.drafts == 5);
    CHECK(row.cache_share == 1.0);
    CHECK(row.step_us > 0.0);
    CHECK(row.prepare_us > 0.0);
    for (const StepBenchPart* part : {&row.target, &row.draft}) {
      CHECK(part->us > 0.0);
      CHECK(part->ratio == part->us / part->floor_us);
      CHECK(part->distinct_experts >= 2.0);
      CHECK(part->distinct_experts <= 16.0);
      const auto bytes = static_cast<double>(part->weight_bytes + part->cache_bytes);
      CHECK(std::abs(part->floor_us - bytes / outcome.machine.copy_gbps * 1e-3) <=
            1e-9 * part->floor_us);
    }
  }
}

TEST_CASE("weight bytes count the experts that some row chose and no other", "[step_bench]") {
  StepBenchOptions bench = TinyBench();
  bench.sequences = {1, 8};
  const Outcome outcome = Run(Options(8), bench);
  REQUIRE(outcome.status.ok());
  const StepBenchPart& one = outcome.rows[0].target;
  const StepBenchPart& eight = outcome.rows[1].target;
  // Six rows choose at most twelve of the sixteen; forty-eight leave few out.
  CHECK(one.distinct_experts <= 12.0);
  CHECK(eight.distinct_experts > one.distinct_experts);
  CHECK(eight.weight_bytes - one.weight_bytes ==
        (TotalExperts(eight, kLayers) - TotalExperts(one, kLayers)) * kExpertBytes);
}

TEST_CASE("cache bytes count shared keys once a sequence and chosen entries once a row",
          "[step_bench]") {
  StepBenchOptions bench = TinyBench();
  bench.sequences = {2};
  bench.drafts = {3};
  bench.contexts = {40, 300};
  const Outcome outcome = Run(Options(2), bench);
  REQUIRE(outcome.status.ok());
  REQUIRE(outcome.rows.size() == 2);
  const int64_t window = kLayers * 31 * kRecord;
  // Ten entries at 40, all kept and none scored; 75 at 300, of which 32 are chosen. Two entries of 128 tokens at 300.
  CHECK(outcome.rows[0].target.cache_bytes == 2 * window + 8 * 2 * 10 * kRecord);
  CHECK(outcome.rows[1].target.cache_bytes ==
        2 * (window + 2 * 75 * kIndexRecord + 2 * kRecord) + 8 * 2 * 32 * kRecord);
  CHECK(outcome.rows[1].draft.cache_bytes == 2 * 3 * (32 + 5) * kRecord);
}

TEST_CASE("sequences share cache blocks where memory is short", "[step_bench]") {
  StepBenchOptions bench = TinyBench();
  bench.sequences = {4};
  bench.contexts = {1000};
  bench.cache_bytes = 1;
  const Outcome outcome = Run(Options(4), bench);
  REQUIRE(outcome.status.ok());
  CHECK(outcome.rows[0].cache_share < 0.5);
  CHECK(outcome.rows[0].cache_share >= 0.25);
}

TEST_CASE("fewer layers read fewer bytes", "[step_bench]") {
  StepBenchOptions bench = TinyBench();
  const Outcome all = Run(Options(1), bench);
  bench.synthetic.layers = 3;
  const Outcome three = Run(Options(1), bench);
  REQUIRE(all.status.ok());
  REQUIRE(three.status.ok());
  CHECK(three.rows[0].target.weight_bytes < all.rows[0].target.weight_bytes);
  CHECK(three.rows[0].draft.us > 0.0);
}

TEST_CASE("a checkpoint's step is timed behind prompts of its own", "[step_bench]") {
  StepBenchOptions bench;
  bench.sequences = {2};
  bench.drafts = {0, 5};
  bench.contexts = {64};
  bench.repeats = 1;
  EngineOptions options = DemoEngineOptions(2);
  const Outcome outcome = Run(options, bench);
  INFO(outcome.status.ToString());
  REQUIRE(outcome.status.ok());
  REQUIRE(outcome.rows.size() == 2);
  CHECK(outcome.rows[0].target.distinct_experts < outcome.rows[1].target.distinct_experts);
  CHECK(outcome.rows[1].draft.us > 0.0);
  options.drafter = "none";
  bench.drafts = {};
  const Outcome plain = Run(options, bench);
  REQUIRE(plain.status.ok());
  REQUIRE(plain.rows.size() == 1);
  CHECK(plain.rows[0].draft.us == 0.0);
}

TEST_CASE("what a shape or a context cannot have is an error that names it", "[step_bench]") {
  StepBenchOptions bench = TinyBench();
  bench.synthetic.tp = 3;
  CHECK(Run(Options(1), bench).status.message().find("tp is 3") != std::string::npos);
  bench.synthetic = {"huge", 1, 0};
  CHECK(Run(Options(1), bench).status.message().find("'huge'") != std::string::npos);
  bench = TinyBench();
  bench.drafts = {6};
  CHECK(Run(Options(1), bench).status.message().find("drafts is 6") != std::string::npos);
}

}  // namespace
}  // namespace firesteel
