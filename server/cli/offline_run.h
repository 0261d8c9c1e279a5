// `firesteel generate` and `firesteel eval`: JSON lines in, JSON lines out in the same order.
//
// Threads: Run belongs to the calling thread, which alone writes `output`; results arrive from the output thread.
// Invariant: at most `batch` requests are in the engine, so its batch is what the command line says and its queue is
// never full.
#pragma once

#include <condition_variable>
#include <functional>
#include <iosfwd>
#include <map>
#include <mutex>
#include <string>

#include "engine/api/engine.h"
#include "server/cli/json_lines.h"
#include "server/cli/run_summary.h"
#include "server/stream/output_thread.h"

namespace firesteel {

struct OfflineRunOptions {
  int32_t batch = 1;
  bool compare = false;  // eval
  SamplingParams defaults;
  std::function<void(int64_t done, int64_t total)> on_progress;  // may be empty
};

struct OfflineRunResult {
  std::string summary;  // one line of JSON
  bool all_succeeded = false;
};

class OfflineRun {
 public:
  // The pointers outlive the run.
  OfflineRun(const Engine* engine, OutputThread* output_thread, ParseContext context,
             OfflineRunOptions options);

  // Blank lines are skipped and have no index.
  OfflineRunResult Run(std::istream& input, std::ostream& output);

 private:
  class LineStream;
  struct Done {
    GenerationResult result;
    std::string refused;  // not empty: the line was bad
  };

  void Admit(int64_t index, const std::string& line);
  void Put(int64_t index, Done done, bool was_running);
  void WriteReady(std::ostream& output, int64_t total);
  void WriteLine(std::ostream& output, int64_t index, const Done& done);

  const Engine* const engine_;
  OutputThread* const output_thread_;
  const ParseContext context_;
  const OfflineRunOptions options_;
  RunSummary summary_;
  std::map<int64_t, std::vector<int32_t>> expected_;  // by index, until the line is written
  int64_t next_to_write_ = 0;

  std::mutex mutex_;  // guards done_ and running_
  std::condition_variable changed_;
  std::map<int64_t, Done> done_;
  int32_t running_ = 0;
};

}  // namespace firesteel
