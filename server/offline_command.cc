#include "server/offline_command.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string>

#include "server/app.h"
#include "server/cli/flags.h"
#include "server/cli/line_source.h"
#include "server/cli/offline_run.h"

namespace firesteel {

namespace {

// The number of lines is not known before the last one is read.
void ShowProgress(int64_t done) {
  std::fprintf(stderr, "\r%lld lines done", static_cast<long long>(done));
  std::fflush(stderr);
}

}  // namespace

int RunOffline(const CliOptions& options) {
  // A reader that left is an error of the next write, not the end of this process.
  signal(SIGPIPE, SIG_IGN);
  Result<std::unique_ptr<LineSource>> input = OpenLineSource(options.offline.input);
  if (!input.ok()) {
    spdlog::error("{}", input.status().message());
    return kExitFailure;
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
  const bool progress = isatty(STDERR_FILENO) != 0;
  if (progress) run_options.on_progress = ShowProgress;
  OfflineRun run(app->engine(), app->output_thread(), app->MakeParseContext(),
                 std::move(run_options));
  const OfflineRunResult result = run.Run(input->get(), std::cout);
  if (progress) std::fputc('\n', stderr);
  if (!result.status.ok()) spdlog::error("{}", result.status.message());
  loaded->reset();  // before the summary: nothing may be logged behind it
  std::fprintf(stderr, "%s\n", result.summary.c_str());
  return result.all_succeeded ? kExitOk : kExitFailure;
}

}  // namespace firesteel
