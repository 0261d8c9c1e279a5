// `firesteel generate` and `firesteel eval`: JSON lines in, JSON lines out in the same order.
//
// Threads: Run belongs to the calling thread, which alone writes `output`; results arrive from the output thread, lines
// from a thread that Run starts and joins.
// Invariants:
//  1. At most `batch` requests are in the engine, so its batch is what the command line says and its queue is never full.
//  2. Lines are admitted as they arrive; at most `batch` of them wait unparsed, and no line is admitted kMostAhead lines
//     before the next one to write.
//  3. The first failed write ends the run.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <iosfwd>
#include <map>
#include <mutex>
#include <string>

#include "engine/api/engine.h"
#include "server/cli/json_lines.h"
#include "server/cli/line_source.h"
#include "server/cli/run_summary.h"
#include "server/stream/output_thread.h"

namespace firesteel {

struct OfflineRunOptions {
  int32_t batch = 1;
  bool compare = false;  // eval
  SamplingParams defaults;
  std::function<void(int64_t done)> on_progress;  // after each written line; may be empty
};

struct OfflineRunResult {
  std::string summary;  // one line of JSON
  Status status;        // of the input and the output
  // Everything was read and written, no line failed and, for eval, none differs from what it expects.
  bool all_succeeded = false;
};

class OfflineRun {
 public:
  // The pointers outlive the run.
  OfflineRun(const Engine* engine, OutputThread* output_thread, ParseContext context,
             OfflineRunOptions options);

  // Blank lines are skipped and have no index.
  OfflineRunResult Run(LineSource* input, std::ostream& output);

 private:
  class LineStream;
  struct Done {
    GenerationResult result;
    std::string refused;  // not empty: the line was bad
  };

  void ReadLines(LineSource* input);
  bool CanAdmit() const;  // REQUIRES: mutex_ is held
  bool NextLine(std::string* line);
  void Serve(std::ostream& output);
  void GiveUp(LineSource* input);
  void Admit(const std::string& line);
  void Put(int64_t index, Done done, bool was_running);
  bool WriteReady(std::ostream& output);
  void WriteLine(std::ostream& output, int64_t index, const Done& done);

  const Engine* const engine_;
  OutputThread* const output_thread_;
  const ParseContext context_;
  const OfflineRunOptions options_;
  RunSummary summary_;
  std::map<int64_t, std::vector<int32_t>> expected_;  // by index, until the line is written
  std::map<int64_t, RequestId> admitted_;             // by index, until the line is written
  int64_t next_to_admit_ = 0;
  int64_t next_to_write_ = 0;
  Status status_;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::map<int64_t, Done> done_;
  int32_t running_ = 0;
  std::deque<std::string> lines_;  // read and not yet admitted
  bool input_ended_ = false;
  bool stopped_ = false;  // nothing more is read
};

}  // namespace firesteel
