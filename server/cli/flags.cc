#include "server/cli/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/api/engine_stats.h"
#include "server/cli/config_file.h"

namespace firesteel {

namespace {

// Text forms of flags whose values are checked by the engine's own parsers.
struct RawFlags {
  std::string device = "cpu";
  std::string cache_dtype;  // empty: what suits the device
  std::string activations = "auto";
  std::string draft_length = "checkpoint";
  std::string config;
  std::string access_log = "on";
  bool eager = false;
  bool no_prefix_cache = false;
  bool rank_only = false;
};

// Defaults depend on the device, so what was not given stays empty here.
struct RawKernelBenchFlags {
  std::vector<std::string> families = {"all"};
  std::string shapes;
  std::vector<int32_t> rows;
  int32_t repeats = KernelBenchOptions().repeats;
};

void AddActivationsFlag(CLI::App* app, RawFlags* raw) {
  app->add_option("--activations", raw->activations,
                  "Rows that operations hand to each other: fp32, bf16 or auto (fp32 on a CPU, "
                  "bf16 on a GPU)")
      ->capture_default_str();
}

void AddEngineFlags(CLI::App* app, EngineOptions* engine, RawFlags* raw) {
  app->add_option("--model", engine->model_dir, "Checkpoint directory");
  app->add_option("--device", raw->device, "cpu or cuda")->capture_default_str();
  app->add_option("--drafter", engine->drafter, "dspark or none")->capture_default_str();
  app->add_option(
         "--draft-length", raw->draft_length,
         "Drafts per round: a number; 'checkpoint': its block size; 'auto': chosen while running "
         "from the step costs measured at start (greedy requests)")
      ->capture_default_str();
  app->add_option("--kv-cache-dtype", raw->cache_dtype,
                  "fp32, bf16 or fp8; default: fp32 on a CPU, fp8 on a GPU");
  AddActivationsFlag(app, raw);
  app->add_option("--threads", engine->threads, "CPU workers; 0: one per core")
      ->capture_default_str();
  app->add_option("--max-batched-tokens", engine->max_batched_tokens, "Target rows in one step")
      ->capture_default_str();
  app->add_option("--prefill-chunk", engine->prefill_chunk,
                  "Prompt rows of one sequence in one step")
      ->capture_default_str();
  app->add_option("--max-model-len", engine->max_model_len,
                  "Positions of one sequence; 0: the checkpoint's limit")
      ->capture_default_str();
  app->add_option("--cache-tokens", engine->cache_tokens,
                  "Capacity of the context cache in tokens; 0: automatic")
      ->capture_default_str();
  app->add_option("--memory-fraction", engine->memory_fraction,
                  "Share of a GPU's memory for weights, buffers and automatic caches together")
      ->capture_default_str();
  app->add_flag("--eager", raw->eager, "Run every step without captured graphs");
  app->add_flag("--no-prefix-cache", raw->no_prefix_cache, "Never share cached prompt prefixes");
}

void AddBatchFlag(CLI::App* app, EngineOptions* engine) {
  app->add_option("--batch,--max-sequences", engine->max_sequences,
                  "Sequences that run at the same time")
      ->capture_default_str();
}

void AddServeFlags(CLI::App* app, EngineOptions* engine, ServeOptions* serve, RawFlags* raw) {
  app->add_option("--config", raw->config, "JSON file (comments allowed) with these flags as keys");
  app->add_option("--host", serve->host, "Address to listen on, or localhost")
      ->capture_default_str();
  app->add_option("--http-port,--port", serve->http_port, "Port; 0: any free one, printed at start")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app->add_option("--grpc-port", serve->grpc_port,
                  "gRPC port; 0: no gRPC; -1: any free one, printed at start")
      ->check(CLI::Range(-1, 65535))
      ->capture_default_str();
  app->add_option("--access-log", raw->access_log, "on or off: a log line for every HTTP request")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  app->add_option("--served-model-name", serve->served_model_name,
                  "Model name in the API; empty: the model directory's name");
  app->add_option("--max-queue", engine->max_queue, "Requests that may wait; more are answered 429")
      ->capture_default_str();
  app->add_option("--drain-timeout", serve->drain_timeout_s,
                  "Seconds that SIGTERM leaves to running requests")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  app->add_option("--max-body-bytes", serve->max_body_bytes, "Largest request body or gRPC message")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
}

void AddOfflineFlags(CLI::App* app, OfflineOptions* offline) {
  app->add_option("--input", offline->input, "JSON-lines file, or - for standard input")
      ->required();
  app->add_option("--max-tokens", offline->sampling.max_tokens, "Output tokens per line")
      ->capture_default_str();
  app->add_option("--temperature", offline->sampling.temperature, "0: greedy")
      ->capture_default_str();
  app->add_option("--top-p", offline->sampling.top_p, "Nucleus mass")->capture_default_str();
  app->add_option("--seed", offline->sampling.seed, "Seed of every line that has none")
      ->capture_default_str();
}

void AddStepBenchFlags(CLI::App* app, StepBenchOptions* bench, bool* rank_only) {
  app->add_option("--batch,--sequences", bench->sequences,
                  "Batch sizes to measure, comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app->add_option("--drafts", bench->drafts,
                  "Verify lengths, comma-separated; default: 0 to K, with --model-shape K")
      ->delimiter(',')
      ->check(CLI::Range(0, kMaxDraftLength));
  app->add_option("--context", bench->contexts,
                  "Positions that each sequence holds, several: comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--repeats", bench->repeats, "Timed steps per figure")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app->add_option("--model-shape", bench->synthetic.name,
                  "Random weights in place of --model: v4-flash, or tiny for a test");
  app->add_option("--tp", bench->synthetic.tp,
                  "Ranks that the shape is cut over; one of them is timed (--rank-only)")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_flag("--rank-only", *rank_only, "Leave out what ranks send each other");
  app->add_option("--layers", bench->synthetic.layers, "Target layers of the shape; 0: all")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

void AddKernelBenchFlags(CLI::App* app, EngineOptions* engine, RawFlags* raw,
                         RawKernelBenchFlags* bench) {
  app->add_option(
         "--family", bench->families,
         "draft-attention, sparse-decode, moe, gemm, indexer, markov, mhc, sampling or all; "
         "several: comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--device", raw->device, "cpu or cuda")->capture_default_str();
  app->add_option("--threads", engine->threads, "CPU workers; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app->add_option("--kv-cache-dtype", raw->cache_dtype,
                  "fp32, bf16 or fp8; default: fp32 on a CPU, fp8 on a GPU");
  AddActivationsFlag(app, raw);
  app->add_option("--shapes", bench->shapes,
                  "v4-flash: one rank of four; laptop: smaller; default: laptop on a CPU, v4-flash "
                  "on a GPU")
      ->check(CLI::IsMember({"v4-flash", "laptop"}));
  app->add_option(
         "--rows", bench->rows,
         "Rows (draft-attention: requests, markov and sampling: sequences) in place of every "
         "family's own, comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxKernelBenchRows));
  app->add_option("--repeat", bench->repeats, "Timed samples of a case")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
}

Result<int32_t> ParseDraftLength(const std::string& text) {
  if (text == "auto") return kDraftLengthAuto;
  if (text == "checkpoint") return kDraftLengthFromCheckpoint;
  const bool digits =
      !text.empty() && text.size() <= 3 &&
      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (digits) return static_cast<int32_t>(std::stoi(text));
  return InvalidArgument("draft-length is '" + text + "', needs a number, 'checkpoint' or 'auto'");
}

Status SettleKernelBench(const RawFlags& raw, const RawKernelBenchFlags& flags,
                         CliOptions* options) {
  FIRESTEEL_ASSIGN_OR_RETURN(const DeviceKind device, ParseDeviceKind(raw.device));
  KernelBenchOptions bench = DefaultKernelBenchOptions(device);
  bench.threads = options->engine.threads;
  bench.rows = flags.rows;
  bench.repeats = flags.repeats;
  if (!raw.cache_dtype.empty()) {
    FIRESTEEL_ASSIGN_OR_RETURN(bench.cache_dtype, ParseCacheDtype(raw.cache_dtype));
  }
  FIRESTEEL_ASSIGN_OR_RETURN(bench.activations, ParseActivationDtype(raw.activations, device));
  if (!flags.shapes.empty()) {
    bench.shapes = flags.shapes == "laptop" ? LaptopShapes() : V4FlashShapes();
  }
  for (const std::string& name : flags.families) {
    if (name == "all") {
      bench.families.assign(std::begin(kKernelFamilies), std::end(kKernelFamilies));
    } else {
      FIRESTEEL_ASSIGN_OR_RETURN(const KernelFamily family, ParseKernelFamily(name));
      bench.families.push_back(family);
    }
  }
  options->kernel_bench = std::move(bench);
  return Status::Ok();
}

Status SettleStepBench(const RawFlags& raw, CliOptions* options) {
  const StepBenchOptions& bench = options->step_bench;
  EngineOptions& engine = options->engine;
  engine.max_sequences = *std::max_element(bench.sequences.begin(), bench.sequences.end());
  const SyntheticShape& shape = bench.synthetic;
  if (shape.name.empty()) {
    if (shape.tp == 1 && shape.layers == 0 && !raw.rank_only) return Status::Ok();
    return InvalidArgument("tp, layers and rank-only need a model-shape");
  }
  if (!engine.model_dir.empty()) {
    return InvalidArgument("model is '" + engine.model_dir + "', needs none with a model-shape");
  }
  if (shape.tp > 1 && !raw.rank_only) {
    return InvalidArgument("tp is " + std::to_string(shape.tp) +
                           ", needs rank-only: this engine runs one rank");
  }
  engine.model_dir = shape.name;
  return Status::Ok();
}

Status Settle(const RawFlags& raw, CliOptions* options) {
  FIRESTEEL_ASSIGN_OR_RETURN(options->engine.device, ParseDeviceKind(raw.device));
  if (raw.cache_dtype.empty()) {
    options->engine.cache_dtype = DefaultCacheDtype(options->engine.device);
  } else {
    FIRESTEEL_ASSIGN_OR_RETURN(options->engine.cache_dtype, ParseCacheDtype(raw.cache_dtype));
  }
  FIRESTEEL_ASSIGN_OR_RETURN(options->engine.activations,
                             ParseActivationDtype(raw.activations, options->engine.device));
  FIRESTEEL_ASSIGN_OR_RETURN(options->engine.draft_length, ParseDraftLength(raw.draft_length));
  options->serve.access_log = raw.access_log == "on";
  options->engine.graphs = !raw.eager;
  options->engine.prefix_cache = !raw.no_prefix_cache;
  if (options->command == Command::kBenchStep) {
    FIRESTEEL_RETURN_IF_ERROR(SettleStepBench(raw, options));
  }
  FIRESTEEL_RETURN_IF_ERROR(options->engine.Validate());
  if (options->command == Command::kGenerate || options->command == Command::kEval) {
    return options->offline.sampling.Validate();
  }
  return Status::Ok();
}

ParsedFlags Failure(const std::string& message) {
  ParsedFlags parsed;
  parsed.exit_code = kExitBadFlags;
  parsed.text = message;
  return parsed;
}

// What the library would only call a missing subcommand. Empty when the first argument may be right.
std::string MisplacedArgument(const std::vector<std::string>& args) {
  if (args.empty()) return "";
  const std::string& first = args.front();
  for (const char* right : {"serve", "generate", "eval", "bench", "-h", "--help", "--version"}) {
    if (first == right) return "";
  }
  if (!first.empty() && first.front() == '-') {
    return "'" + first +
           "' comes before the subcommand; the order is: firesteel serve|generate|eval|bench FLAGS";
  }
  return "unknown subcommand '" + first + "', needs serve, generate, eval or bench";
}

// One pass over the arguments. `config` receives the path given by --config.
ParsedFlags ParseOnce(std::vector<std::string> args, std::string* config) {
  CliOptions options;
  // Offline runs compare and reproduce, so they are greedy with a fixed seed unless told otherwise.
  options.offline.sampling.temperature = 0.0F;
  options.offline.sampling.max_tokens = 128;
  RawFlags raw;
  CLI::App app("Firesteel: inference with speculative decoding", "firesteel");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_version_flag("--version", std::string(FIRESTEEL_VERSION));
  app.require_subcommand(1);
  CLI::App* serve = app.add_subcommand("serve", "Serve the OpenAI-style HTTP API and gRPC");
  CLI::App* generate =
      app.add_subcommand("generate", "Generate for every line of a JSON-lines file");
  CLI::App* eval = app.add_subcommand(
      "eval", "As generate, and compare with the lines' expected_ids or output_ids");
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine");
  bench->require_subcommand(1);
  CLI::App* bench_step = bench->add_subcommand(
      "step", "Time of a decode step by batch and verify length, beside the machine's ceilings");
  CLI::App* bench_kernels = bench->add_subcommand(
      "kernels", "Time of single operations beside the floor that the machine's ceilings set");
  RawKernelBenchFlags kernel_flags;
  AddKernelBenchFlags(bench_kernels, &options.engine, &raw, &kernel_flags);
  for (CLI::App* command : {serve, generate, eval, bench_step}) {
    AddEngineFlags(command, &options.engine, &raw);
  }
  for (CLI::App* command : {serve, generate, eval}) AddBatchFlag(command, &options.engine);
  AddStepBenchFlags(bench_step, &options.step_bench, &raw.rank_only);
  AddServeFlags(serve, &options.engine, &options.serve, &raw);
  AddOfflineFlags(generate, &options.offline);
  AddOfflineFlags(eval, &options.offline);
  std::reverse(args.begin(), args.end());  // CLI11 takes its vector from the back
  try {
    app.parse(args);
  } catch (const CLI::CallForHelp&) {
    ParsedFlags parsed;
    const CLI::App* asked = &app;
    while (!asked->get_subcommands().empty()) asked = asked->get_subcommands().front();
    parsed.text = asked->help();
    return parsed;
  } catch (const CLI::CallForVersion&) {
    ParsedFlags parsed;
    parsed.text = "firesteel " + std::string(FIRESTEEL_VERSION) + "\n";
    return parsed;
  } catch (const CLI::ParseError& error) {
    return Failure(error.what());
  }
  if (generate->parsed()) options.command = Command::kGenerate;
  if (eval->parsed()) options.command = Command::kEval;
  if (bench_step->parsed()) options.command = Command::kBenchStep;
  if (bench_kernels->parsed()) options.command = Command::kBenchKernels;
  *config = raw.config;
  const Status status = bench_kernels->parsed() ? SettleKernelBench(raw, kernel_flags, &options)
                                                : Settle(raw, &options);
  if (!status.ok() && raw.config.empty()) return Failure(status.message());
  ParsedFlags parsed;
  parsed.options = std::move(options);
  return parsed;
}

}  // namespace

ParsedFlags ParseFlags(const std::vector<std::string>& args) {
  const std::string misplaced = MisplacedArgument(args);
  if (!misplaced.empty()) return Failure(misplaced);
  std::string config;
  ParsedFlags first = ParseOnce(args, &config);
  if (!first.options.has_value() || config.empty()) return first;
  // The file's flags go in front, so that the command line, which comes last, wins.
  const Result<std::vector<std::string>> from_file = ReadConfigFile(config);
  if (!from_file.ok()) return Failure(from_file.status().message());
  std::vector<std::string> merged = {"serve"};
  merged.insert(merged.end(), from_file->begin(), from_file->end());
  for (size_t i = 1; i < args.size(); ++i) {
    if (args[i] == "--config") {
      ++i;  // and its value
    } else if (args[i].rfind("--config=", 0) != 0) {
      merged.push_back(args[i]);
    }
  }
  std::string none;
  ParsedFlags second = ParseOnce(std::move(merged), &none);
  if (!second.options.has_value()) second.text = config + " or command line: " + second.text;
  return second;
}

}  // namespace firesteel
