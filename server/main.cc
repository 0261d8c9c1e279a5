// The firesteel binary: flags, logging and signals; then one command.
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <string>
#include <vector>

#include "server/bench_command.h"
#include "server/cli/flags.h"
#include "server/offline_command.h"
#include "server/serve_command.h"

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  const firesteel::ParsedFlags parsed = firesteel::ParseFlags(args);
  if (!parsed.options.has_value()) {
    const bool bad = parsed.exit_code != firesteel::kExitOk;
    std::fprintf(bad ? stderr : stdout, bad ? "firesteel: %s\n" : "%s", parsed.text.c_str());
    return parsed.exit_code;
  }
  spdlog::set_default_logger(spdlog::stderr_color_mt("firesteel"));
  spdlog::set_pattern("%Y-%m-%d %H:%M:%S %l %v");
  switch (parsed.options->command) {
    case firesteel::Command::kGenerate:
    case firesteel::Command::kEval: return firesteel::RunOffline(*parsed.options);
    case firesteel::Command::kBenchStep: return firesteel::RunStepBenchCommand(*parsed.options);
    case firesteel::Command::kBenchKernels:
      return firesteel::RunKernelBenchCommand(*parsed.options);
    case firesteel::Command::kServe: break;
  }
  // Blocked before any thread starts, so that every thread inherits it and RunServe can wait for them.
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return firesteel::RunServe(*parsed.options);
}
