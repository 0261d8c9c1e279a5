#include "server/cli/offline_run.h"

#include <chrono>
#include <istream>
#include <ostream>
#include <utility>
#include <vector>

namespace firesteel {

class OfflineRun::LineStream : public ResponseStream {
 public:
  LineStream(OfflineRun* run, int64_t index) : run_(run), index_(index) {}
  bool OnText(std::string_view, int64_t) override { return true; }
  void OnFinish(GenerationResult result) override {
    Done done;
    if (result.finish == FinishReason::kError || result.finish == FinishReason::kAborted) {
      done.refused = result.error.ok() ? "aborted" : result.error.message();
    }
    done.result = std::move(result);
    run_->Put(index_, std::move(done), true);
  }

 private:
  OfflineRun* const run_;
  const int64_t index_;
};

OfflineRun::OfflineRun(const Engine* engine, OutputThread* output_thread, ParseContext context,
                       OfflineRunOptions options)
    : engine_(engine),
      output_thread_(output_thread),
      context_(std::move(context)),
      options_(std::move(options)),
      summary_(engine->info().draft_length) {}

void OfflineRun::Put(int64_t index, Done done, bool was_running) {
  const std::lock_guard<std::mutex> lock(mutex_);
  done_.emplace(index, std::move(done));
  if (was_running) --running_;
  changed_.notify_all();
}

void OfflineRun::Admit(int64_t index, const std::string& line) {
  Done refused;
  Result<InputLine> parsed = ParseInputLine(line, context_, options_.defaults);
  if (!parsed.ok()) {
    refused.refused = parsed.status().message();
    return Put(index, std::move(refused), false);
  }
  if (options_.compare && parsed->expected_ids.has_value()) {
    expected_[index] = std::move(*parsed->expected_ids);
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++running_;
  }
  const Result<RequestId> id =
      output_thread_->Submit(std::move(parsed->call), std::make_unique<LineStream>(this, index));
  if (!id.ok()) {
    refused.refused = id.status().message();
    Put(index, std::move(refused), true);
  }
}

void OfflineRun::WriteLine(std::ostream& output, int64_t index, const Done& done) {
  if (!done.refused.empty()) {
    summary_.AddFailure();
    output << FormatErrorLine(index, done.refused) << '\n';
    return;
  }
  summary_.AddResult(done.result);
  std::optional<bool> match;
  const auto expected = expected_.find(index);
  if (expected != expected_.end()) {
    match = done.result.output_ids == expected->second;
    summary_.AddComparison(index, *match);
    expected_.erase(expected);
  }
  output << FormatOutputLine(index, done.result, match) << '\n';
}

void OfflineRun::WriteReady(std::ostream& output, int64_t total) {
  while (true) {
    Done done;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto it = done_.find(next_to_write_);
      if (it == done_.end()) return;
      done = std::move(it->second);
      done_.erase(it);
    }
    WriteLine(output, next_to_write_, done);
    output.flush();
    ++next_to_write_;
    if (options_.on_progress) options_.on_progress(next_to_write_, total);
  }
}

OfflineRunResult OfflineRun::Run(std::istream& input, std::ostream& output) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(input, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) lines.push_back(std::move(line));
  }
  const auto total = static_cast<int64_t>(lines.size());
  const int64_t steps_before = engine_->stats().steps;
  const auto start = std::chrono::steady_clock::now();
  int64_t next = 0;
  while (next_to_write_ < total) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] {
        return done_.count(next_to_write_) > 0 || (next < total && running_ < options_.batch);
      });
    }
    WriteReady(output, total);
    while (next < total) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (running_ >= options_.batch) break;
      }
      Admit(next, lines[static_cast<size_t>(next)]);
      ++next;
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  OfflineRunResult result;
  result.summary = summary_.ToJson(engine_->info(), engine_->stats().steps - steps_before,
                                   seconds.count(), options_.batch, options_.compare);
  result.all_succeeded = summary_.failed() == 0;
  return result;
}

}  // namespace firesteel
