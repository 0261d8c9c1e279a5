#include "server/offline_command.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>

#include "server/app.h"
#include "server/cli/flags.h"
#include "server/cli/offline_run.h"

namespace firesteel {

namespace {

void ShowProgress(int64_t done, int64_t total) {
  constexpr int64_t kWidth = 40;
  const int64_t filled = total == 0 ? kWidth : kWidth * done / total;
  const std::string bar = std::string(static_cast<size_t>(filled), '#') +
                          std::string(static_cast<size_t>(kWidth - filled), '.');
  std::fprintf(stderr, "\r[%s] %lld/%lld%s", bar.c_str(), static_cast<long long>(done),
               static_cast<long long>(total), done == total ? "\n" : "");
  std::fflush(stderr);
}

}  // namespace

int RunOffline(const CliOptions& options) {
  std::ifstream file;
  if (options.offline.input != "-") {
    file.open(options.offline.input);
    if (!file) {
      spdlog::error("input file '{}' cannot be read", options.offline.input);
      return kExitFailure;
    }
  }
  Result<std::unique_ptr<App>> loaded = App::Load(options.engine);
  if (!loaded.ok()) {
    spdlog::error("{}", loaded.status().message());
    return kExitFailure;
  }
  App* app = loaded->get();
  OfflineRunOptions run_options;
  run_options.batch = options.engine.max_sequences;
  run_options.compare = options.command == Command::kEval;
  run_options.defaults = options.offline.sampling;
  if (isatty(STDERR_FILENO) != 0) run_options.on_progress = ShowProgress;
  OfflineRun run(app->engine(), app->output_thread(), app->MakeParseContext(),
                 std::move(run_options));
  const OfflineRunResult result = run.Run(file.is_open() ? file : std::cin, std::cout);
  loaded->reset();  // before the summary: nothing may be logged behind it
  std::fprintf(stderr, "%s\n", result.summary.c_str());
  return result.all_succeeded && std::cout.good() ? kExitOk : kExitFailure;
}

}  // namespace firesteel
