// The kernel benchmark on tiny shapes: every family runs, and what it calls the bytes and FLOP of a case is what a hand counts.
#include "engine/api/kernel_bench.h"

#include <cmath>
#include <map>

#include "kernels/ops/slot_sampling.h"
#include "kernels/ops/verify/sequence_result.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

KernelBenchShapes TinyShapes() {
  KernelBenchShapes s;
  s.attention_heads = {2};
  s.head_dim = 128;
  s.rope_dim = 64;
  s.window = 4;
  s.block_rows = 2;
  s.list_width = 8;
  s.extra_keys = 3;
  s.verify_rows = 3;
  s.hidden = 64;
  s.experts = 4;
  s.experts_per_row = 2;
  s.inner = 32;
  s.q_rank = 32;
  s.q_heads = 2;
  s.o_groups = 2;
  s.o_rank = 16;
  s.head_rows = 48;
  s.index_heads = 4;
  s.index_dim = 64;
  s.index_top_k = 4;
  s.index_visible = {16};
  s.vocab = 100;
  s.markov_rank = 8;
  s.draft_requests = {1};
  s.decode_rows = {3};
  s.moe_rows = {1};
  s.gemm_rows = {1};
  s.indexer_rows = {1};
  s.markov_sequences = {1};
  s.streams = 2;
  s.mhc_rows = {3};
  s.sampling_sequences = {2};
  return s;
}

KernelBenchOptions TinyOptions() {
  KernelBenchOptions options = DefaultKernelBenchOptions(DeviceKind::kCpu);
  options.threads = 2;
  options.shapes = TinyShapes();
  options.cache_dtype = CacheDtype::kFp8;
  options.activations = DType::kBf16;
  options.repeats = 1;
  options.rotate_bytes = int64_t{1} << 16;
  return options;
}

struct Outcome {
  KernelBenchMachine machine;
  std::vector<KernelBenchRow> rows;
};

Outcome RunTiny(const KernelBenchOptions& options) {
  Outcome outcome;
  const Status status = RunKernelBench(
      options, {[&](const KernelBenchMachine& machine) { outcome.machine = machine; },
                [&](const KernelBenchRow& row) { outcome.rows.push_back(row); }});
  INFO(status.message());
  REQUIRE(status.ok());
  return outcome;
}

TEST_CASE("every family is timed and counts the bytes and FLOP that a hand counts",
          "[kernel_bench]") {
  const Outcome outcome = RunTiny(TinyOptions());
  CHECK(outcome.machine.copy_gbps > 0.0);
  CHECK(outcome.machine.gflops > 0.0);
  std::map<std::string, const KernelBenchRow*> found;
  for (const KernelBenchRow& row : outcome.rows) {
    const std::string key = std::string(KernelFamilyName(row.family)) + " " + row.name;
    INFO(key);
    CHECK(found.emplace(key, &row).second);
    CHECK(row.skipped.empty());
    for (const double us : {row.median_us, row.min_us, row.max_us, row.floor_us, row.ratio}) {
      CHECK(std::isfinite(us));
      CHECK(us > 0.0);
    }
    CHECK(row.min_us <= row.median_us);
    CHECK(row.median_us <= row.max_us);
    CHECK(row.sets >= 2);
    CHECK(row.launches % row.sets == 0);
  }
  CHECK(found.size() == 21);

  struct Expected {
    const char* key;
    double bytes;
    double flop;
    double nodes;
  };
  // A cached row of 128 values, 64 of them rotary, is 64 + 128 bytes and 8 of scales: 200. An expert's matrix of 32 x 64 is 1024
  // bytes and 64 scales: 1088.
  const Expected expected[] = {
      // 6 keys with an index each, a count; 2 rows x 2 heads x 128 in bf16, twice; 2 sinks
      {"draft-attention sparse_attention", 6 * (200 + 4) + 4 + 2 * 1024 + 8, 4 * 2 * 2 * 6 * 128,
       1},
      // 3 verify rows: 4 + 2 window keys together, 3 entries each; 7 indices and two counts a row
      {"sparse-decode sparse_attention", (6 + 9) * 200 + 3 * (28 + 8) + 2 * 1536 + 8,
       4 * 3 * 2 * 7 * 128, 1},
      // 2 experts of 3 matrices; a row of 64 in, two of 64 out; 2 choices with a weight each
      {"moe experts", 2 * 3 * 1088 + 128 + 256 + 16, 2 * 2 * 3 * 64 * 32, 5},
      {"moe gate", 2 * 1088 + 128 + 128, 2 * 2 * 64 * 32, 1},
      {"moe down", 2 * 1088 + 128 + 256, 2 * 2 * 64 * 32, 1},
      // two groups of 16 outputs over 128 columns, one scale
      {"gemm wo_a", 32 * 128 + 1 + 512 + 64, 2 * 32 * 128, 1},
      // bf16 weights, fp32 logits
      {"gemm lm_head", 48 * 64 * 2 + 128 + 192, 2 * 48 * 64, 1},
      // 16 keys of 68 bytes, one block id; q, head weights, visible and slot; 4 kept entries and their count
      {"indexer indexer", 16 * 68 + 4 + 512 + 16 + 8 + 16 + 4, 16 * 4 * 130, 1},
      // W2, 100 logits, a row of W1; slot, temperature and predecessor, the token twice
      {"markov markov_step", 1600 + 400 + 16 + 12 + 8, 2 * 100 * 8, 1},
      // two streams and the collapsed row of 64 in bf16; 8 mixing outputs in, 2 + 4 weights out; norm weight, base, 3 scales
      {"mhc collapse", 3 * (384 + 32 + 24) + 128 + 44, 4 * 3 * 2 * 64, 1},
      // two streams in and out, the sublayer's row, 2 + 4 weights
      {"mhc expand", 3 * (640 + 24), 2 * 3 * 2 * 3 * 64, 1},
      // 6 rows of logits; 2 drafts a sequence, and their probabilities; how it samples, ten numbers, the result
      {"sampling verify_greedy",
       6 * 400 + 2 * (8 + 40 + sizeof(SlotSampling) + sizeof(SequenceResult)), 600, 1},
      {"sampling verify_nucleus",
       6 * 400 + 2 * (16 + 40 + sizeof(SlotSampling) + sizeof(SequenceResult)), 3000, 1},
  };
  for (const Expected& e : expected) {
    INFO(e.key);
    REQUIRE(found.count(e.key) == 1);
    CHECK(found[e.key]->bytes == e.bytes);
    CHECK(found[e.key]->flop == e.flop);
    CHECK(found[e.key]->nodes_per_launch == e.nodes);
  }
}

TEST_CASE("rows replace a family's own sizes, in every cache and activation type",
          "[kernel_bench]") {
  KernelBenchOptions options = TinyOptions();
  options.families = {KernelFamily::kDraftAttention, KernelFamily::kIndexer};
  options.rows = {2, 3};
  const auto [cache, activations] = GENERATE(table<CacheDtype, DType>(
      {{CacheDtype::kFp32, DType::kF32}, {CacheDtype::kBf16, DType::kBf16}}));
  options.cache_dtype = cache;
  options.activations = activations;
  const Outcome outcome = RunTiny(options);
  REQUIRE(outcome.rows.size() == 4);
  CHECK(outcome.rows[1].parameters[1] == std::pair<std::string, int64_t>("requests", 3));
  CHECK(outcome.rows[3].parameters[0] == std::pair<std::string, int64_t>("rows", 3));
  CHECK(outcome.rows[3].parameters[1] == std::pair<std::string, int64_t>("requests", 1));
  CHECK(outcome.rows[0].cache_dtype == CacheDtypeName(cache));
  CHECK(outcome.rows[0].median_us > 0.0);
}

TEST_CASE("a case that needs more memory than the limit is reported and not run",
          "[kernel_bench]") {
  KernelBenchOptions options = TinyOptions();
  options.memory_limit_bytes = 100;
  const Outcome outcome = RunTiny(options);
  REQUIRE(outcome.rows.size() > 4);
  for (const KernelBenchRow& row : outcome.rows) {
    INFO(row.name);
    CHECK(row.skipped.find("limit") != std::string::npos);
    CHECK(row.median_us == 0.0);
  }
}

TEST_CASE("names of families are read back and unknown ones are refused with the known",
          "[kernel_bench]") {
  for (const KernelFamily family : kKernelFamilies) {
    const Result<KernelFamily> parsed = ParseKernelFamily(KernelFamilyName(family));
    REQUIRE(parsed.ok());
    CHECK(*parsed == family);
  }
  CHECK(ParseKernelFamily("conv").status().message().find("'sparse-decode'") != std::string::npos);
  CHECK_FALSE(ParseActivationDtype("fp8", DeviceKind::kCpu).ok());
}

TEST_CASE("sizes out of range are refused before anything is measured", "[kernel_bench]") {
  KernelBenchOptions options = TinyOptions();
  options.rows = {kMaxKernelBenchRows + 1};
  CHECK(options.Validate().message().find("rows is 1025") != std::string::npos);
  options.rows = {};
  options.repeats = 0;
  CHECK_FALSE(options.Validate().ok());
}

}  // namespace
}  // namespace firesteel
