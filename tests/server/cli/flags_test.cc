// The command line: what is read, what is refused and with which exit code.
#include "server/cli/flags.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include "server/cli/config_file.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

using Args = std::vector<std::string>;

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A file that is removed with the test.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text)
      : path_("/tmp/firesteel_flags_test." + std::to_string(getpid()) + ".json") {
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST_CASE("serve has its defaults") {
  const ParsedFlags parsed = ParseFlags({"serve", "--model", "m"});
  REQUIRE(parsed.options.has_value());
  CHECK(parsed.options->command == Command::kServe);
  CHECK(parsed.options->serve.host == "127.0.0.1");
  CHECK(parsed.options->serve.http_port == 8000);
  CHECK(parsed.options->serve.grpc_port == 0);
  CHECK(parsed.options->engine.drafter == "dspark");
  CHECK(parsed.options->engine.draft_length == kDraftLengthFromCheckpoint);
  CHECK(parsed.options->engine.graphs);
}

TEST_CASE("every engine flag reaches the options") {
  const ParsedFlags parsed = ParseFlags({"generate",
                                         "--model",
                                         "m",
                                         "--input",
                                         "-",
                                         "--batch",
                                         "3",
                                         "--drafter",
                                         "none",
                                         "--draft-length",
                                         "4",
                                         "--device",
                                         "cuda",
                                         "--kv-cache-dtype",
                                         "fp8",
                                         "--threads",
                                         "2",
                                         "--max-batched-tokens",
                                         "64",
                                         "--prefill-chunk",
                                         "32",
                                         "--max-model-len",
                                         "99",
                                         "--cache-tokens",
                                         "1000",
                                         "--memory-fraction",
                                         "0.5",
                                         "--eager",
                                         "--max-tokens",
                                         "9",
                                         "--temperature",
                                         "0.5",
                                         "--top-p",
                                         "0.75",
                                         "--seed",
                                         "18446744073709551615"});
  INFO(parsed.text);
  REQUIRE(parsed.options.has_value());
  const EngineOptions& engine = parsed.options->engine;
  CHECK(parsed.options->command == Command::kGenerate);
  CHECK(engine.max_sequences == 3);
  CHECK(engine.drafter == "none");
  CHECK(engine.draft_length == 4);
  CHECK(engine.device == DeviceKind::kCuda);
  CHECK(engine.cache_dtype == CacheDtype::kFp8);
  CHECK(engine.threads == 2);
  CHECK(engine.max_batched_tokens == 64);
  CHECK(engine.prefill_chunk == 32);
  CHECK(engine.max_model_len == 99);
  CHECK(engine.cache_tokens == 1000);
  CHECK(engine.memory_fraction == 0.5);
  CHECK_FALSE(engine.graphs);
  const SamplingParams& sampling = parsed.options->offline.sampling;
  CHECK(sampling.max_tokens == 9);
  CHECK(sampling.temperature == 0.5F);
  CHECK(sampling.top_p == 0.75F);
  CHECK(sampling.seed == UINT64_MAX);
}

TEST_CASE("the cache dtype follows the device unless it is given") {
  const auto dtype = [](Args more) {
    Args args = {"serve", "--model", "m"};
    args.insert(args.end(), more.begin(), more.end());
    const ParsedFlags parsed = ParseFlags(args);
    REQUIRE(parsed.options.has_value());
    return parsed.options->engine.cache_dtype;
  };
  CHECK(dtype({}) == CacheDtype::kFp32);
  CHECK(dtype({"--device", "cuda"}) == CacheDtype::kFp8);
  CHECK(dtype({"--device", "cuda", "--kv-cache-dtype", "fp32"}) == CacheDtype::kFp32);
  CHECK(dtype({"--kv-cache-dtype", "bf16"}) == CacheDtype::kBf16);
}

TEST_CASE("the activation type follows the device unless it is given") {
  const auto dtype = [](Args more) {
    Args args = {"serve", "--model", "m"};
    args.insert(args.end(), more.begin(), more.end());
    const ParsedFlags parsed = ParseFlags(args);
    REQUIRE(parsed.options.has_value());
    return parsed.options->engine.activations;
  };
  CHECK(dtype({}) == DType::kF32);
  CHECK(dtype({"--device", "cuda"}) == DType::kBf16);
  CHECK(dtype({"--device", "cuda", "--activations", "auto"}) == DType::kBf16);
  CHECK(dtype({"--device", "cuda", "--activations", "fp32"}) == DType::kF32);
  CHECK(dtype({"--activations", "bf16"}) == DType::kBf16);
}

TEST_CASE("the gRPC port is a port, 0 for none or -1 for any") {
  const auto port = [](const std::string& text) {
    const ParsedFlags parsed = ParseFlags({"serve", "--model", "m", "--grpc-port", text});
    return parsed.options.has_value() ? parsed.options->serve.grpc_port : -99;
  };
  CHECK(port("50051") == 50051);
  CHECK(port("-1") == kAnyGrpcPort);
  CHECK(port("-2") == -99);
  CHECK(port("70000") == -99);
}

TEST_CASE("offline runs are greedy unless told otherwise") {
  const ParsedFlags parsed =
      ParseFlags({"eval", "--model", "m", "--input", "x", "--draft-length", "auto"});
  REQUIRE(parsed.options.has_value());
  CHECK(parsed.options->command == Command::kEval);
  CHECK(parsed.options->offline.sampling.temperature == 0.0F);
  CHECK(parsed.options->engine.draft_length == kDraftLengthAuto);
}

TEST_CASE("bench kernels takes its defaults from the device and needs no model") {
  const auto bench = [](Args more) {
    Args args = {"bench", "kernels"};
    args.insert(args.end(), more.begin(), more.end());
    const ParsedFlags parsed = ParseFlags(args);
    INFO(parsed.text);
    REQUIRE(parsed.options.has_value());
    CHECK(parsed.options->command == Command::kBenchKernels);
    return parsed.options->kernel_bench;
  };
  const KernelBenchOptions cpu = bench({});
  CHECK(cpu.device == DeviceKind::kCpu);
  CHECK(cpu.families.size() == std::size(kKernelFamilies));
  CHECK(cpu.cache_dtype == CacheDtype::kFp32);
  CHECK(cpu.activations == DType::kF32);
  CHECK(cpu.rows.empty());
  CHECK(cpu.shapes.hidden == LaptopShapes().hidden);
  const KernelBenchOptions cuda = bench({"--device", "cuda"});
  CHECK(cuda.cache_dtype == CacheDtype::kFp8);
  CHECK(cuda.activations == DType::kBf16);
  CHECK(cuda.shapes.hidden == V4FlashShapes().hidden);
  CHECK(cuda.rotate_bytes > cpu.rotate_bytes);
  const KernelBenchOptions given =
      bench({"--family", "moe,gemm", "--kv-cache-dtype", "bf16", "--activations", "bf16", "--rows",
             "1,6,48", "--repeat", "3", "--shapes", "v4-flash", "--threads", "1"});
  CHECK(given.families == std::vector<KernelFamily>{KernelFamily::kMoe, KernelFamily::kGemm});
  CHECK(given.cache_dtype == CacheDtype::kBf16);
  CHECK(given.activations == DType::kBf16);
  CHECK(given.rows == std::vector<int32_t>{1, 6, 48});
  CHECK(given.repeats == 3);
  CHECK(given.threads == 1);
  CHECK(given.shapes.experts == V4FlashShapes().experts);
}

TEST_CASE("bench step takes lists and makes room for the largest batch") {
  const ParsedFlags parsed =
      ParseFlags({"bench", "step", "--model-shape", "v4-flash", "--tp", "4", "--rank-only",
                  "--batch", "1,8,32", "--context", "8192,102400", "--layers", "7"});
  INFO(parsed.text);
  REQUIRE(parsed.options.has_value());
  CHECK(parsed.options->command == Command::kBenchStep);
  const StepBenchOptions& bench = parsed.options->step_bench;
  CHECK(bench.sequences == std::vector<int32_t>{1, 8, 32});
  CHECK(bench.contexts == std::vector<int32_t>{8192, 102400});
  CHECK(bench.synthetic.name == "v4-flash");
  CHECK(bench.synthetic.tp == 4);
  CHECK(bench.synthetic.layers == 7);
  CHECK(parsed.options->engine.max_sequences == 32);
}

TEST_CASE("bad command lines exit with 2 and name the flag") {
  const auto [args, named] = GENERATE(table<Args, std::string>({
      {Args{}, "subcommand"},
      {{"dance"}, "'dance'"},
      {{"--model", "m", "serve"}, "'--model' comes before the subcommand"},
      {{"serve", "--model", "m", "--access-log", "maybe"}, "--access-log"},
      {{"serve"}, "model"},
      {{"serve", "--model", "m", "--activations", "fp8"}, "activations is 'fp8'"},
      {{"serve", "--model", "m", "--colour", "red"}, "--colour"},
      {{"serve", "--model", "m", "--http-port", "70000"}, "--http-port"},
      {{"serve", "--model", "m", "--device", "tpu"}, "tpu"},
      {{"serve", "--model", "m", "--draft-length", "-3"}, "draft-length"},
      {{"serve", "--model", "m", "--draft-length", "99"}, "draft-length"},
      {{"serve", "--model", "m", "--threads", "many"}, "--threads"},
      {{"generate", "--model", "m"}, "--input"},
      {{"generate", "--model", "m", "--input", "-", "--temperature", "3"}, "temperature"},
      {{"generate", "--model", "m", "--input", "-", "--host", "::1"}, "--host"},
      {{"bench"}, "subcommand"},
      {{"bench", "kernels", "--family", "conv"}, "'sparse-decode'"},
      {{"bench", "kernels", "--activations", "fp8"}, "activations is 'fp8'"},
      {{"bench", "kernels", "--kv-cache-dtype", "fp4"}, "fp4"},
      {{"bench", "kernels", "--device", "tpu"}, "tpu"},
      {{"bench", "kernels", "--rows", "1,0"}, "--rows"},
      {{"bench", "kernels", "--repeat", "0"}, "--repeat"},
      {{"bench", "kernels", "--shapes", "huge"}, "--shapes"},
      {{"bench", "kernels", "--model", "m"}, "--model"},
  }));
  const ParsedFlags parsed = ParseFlags(args);
  INFO(parsed.text);
  CHECK_FALSE(parsed.options.has_value());
  CHECK(parsed.exit_code == kExitBadFlags);
  CHECK(Has(parsed.text, named));
}

TEST_CASE("help and version exit with 0") {
  const ParsedFlags help = ParseFlags({"serve", "--help"});
  CHECK(help.exit_code == kExitOk);
  CHECK(Has(help.text, "--http-port"));
  CHECK(Has(ParseFlags({"--help"}).text, "generate"));
  CHECK(Has(ParseFlags({"bench", "kernels", "--help"}).text, "--family"));
  CHECK(Has(ParseFlags({"--version"}).text, "firesteel "));
}

TEST_CASE("a config file gives flags and the command line wins over it") {
  const TemporaryFile file(
      "// demo\n{\"model\": \"from-file\", \"http_port\": 9, \"max-queue\": 5, \"eager\": true}\n");
  const ParsedFlags parsed = ParseFlags({"serve", "--config", file.path(), "--http-port", "10"});
  INFO(parsed.text);
  REQUIRE(parsed.options.has_value());
  CHECK(parsed.options->engine.model_dir == "from-file");
  CHECK(parsed.options->serve.http_port == 10);
  CHECK(parsed.options->engine.max_queue == 5);
  CHECK_FALSE(parsed.options->engine.graphs);
}

TEST_CASE("--port is another name of --http-port") {
  const ParsedFlags parsed = ParseFlags({"serve", "--model", "m", "--port", "81"});
  REQUIRE(parsed.options.has_value());
  CHECK(parsed.options->serve.http_port == 81);
}

TEST_CASE("the access log is on unless a flag or the config file turns it off") {
  CHECK(ParseFlags({"serve", "--model", "m"}).options->serve.access_log);
  CHECK_FALSE(
      ParseFlags({"serve", "--model", "m", "--access-log", "off"}).options->serve.access_log);
  const TemporaryFile file("{\"model\": \"m\", \"access_log\": false}");
  CHECK_FALSE(ParseFlags({"serve", "--config", file.path()}).options->serve.access_log);
}

TEST_CASE("a malformed config file is reported with its line and without the library's tag") {
  const Status status = ParseConfig("{\"model\": }", "f").status();
  CHECK(Has(status.message(), "line 1"));
  CHECK_FALSE(Has(status.message(), "[json.exception"));
}

TEST_CASE("an unknown key of a config file is refused by name") {
  const TemporaryFile file("{\"model\": \"m\", \"colour\": \"red\"}");
  const ParsedFlags parsed = ParseFlags({"serve", "--config=" + file.path()});
  CHECK(parsed.exit_code == kExitBadFlags);
  CHECK(Has(parsed.text, "colour"));
}

TEST_CASE("config files that cannot be read or are not objects are refused") {
  CHECK(Has(ParseFlags({"serve", "--config", "/nonexistent"}).text, "/nonexistent"));
  CHECK_FALSE(ParseConfig("[1]", "f").ok());
  CHECK_FALSE(ParseConfig("{", "f").ok());
  CHECK_FALSE(ParseConfig("{\"model\": [1]}", "f").ok());
  CHECK_FALSE(ParseConfig("{\"config\": \"g\"}", "f").ok());
  CHECK(ParseConfig("{\"eager\": false}", "f")->empty());
}

}  // namespace
}  // namespace firesteel
