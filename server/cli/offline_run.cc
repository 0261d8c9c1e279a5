#include "server/cli/offline_run.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ostream>
#include <thread>
#include <utility>
#include <vector>

namespace firesteel {

namespace {

// Bounds what is kept while one slow line holds back those behind it.
constexpr int64_t kMostAhead = 4096;

}  // namespace

class OfflineRun::LineStream : public ResponseStream {
 public:
  LineStream(OfflineRun* run, int64_t index) : run_(run), index_(index) {}
  bool OnText(std::string_view, const GenerationResult&) override { return true; }
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

void OfflineRun::Admit(const std::string& line) {
  const int64_t index = next_to_admit_++;
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
  if (id.ok()) {
    admitted_[index] = *id;
    return;
  }
  refused.refused = id.status().message();
  Put(index, std::move(refused), true);
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
  } else if (options_.compare) {
    summary_.AddUncompared();
  }
  output << FormatOutputLine(index, done.result, match) << '\n';
}

// False when the output takes no more.
bool OfflineRun::WriteReady(std::ostream& output) {
  while (true) {
    Done done;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto it = done_.find(next_to_write_);
      if (it == done_.end()) return true;
      done = std::move(it->second);
      done_.erase(it);
    }
    errno = 0;
    WriteLine(output, next_to_write_, done);
    output.flush();
    if (!output.good()) {
      const std::string why = errno == 0 ? "" : std::string(": ") + std::strerror(errno);
      status_ = Unavailable("line " + std::to_string(next_to_write_) +
                            " of the output cannot be written" + why);
      return false;
    }
    admitted_.erase(next_to_write_);
    ++next_to_write_;
    if (options_.on_progress) options_.on_progress(next_to_write_);
  }
}

void OfflineRun::ReadLines(LineSource* input) {
  for (std::string line; input->Next(&line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock,
                  [&] { return stopped_ || lines_.size() < static_cast<size_t>(options_.batch); });
    if (stopped_) break;
    lines_.push_back(std::move(line));
    changed_.notify_all();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  input_ended_ = true;
  changed_.notify_all();
}

bool OfflineRun::CanAdmit() const {
  return !lines_.empty() && running_ < options_.batch &&
         next_to_admit_ - next_to_write_ < kMostAhead;
}

bool OfflineRun::NextLine(std::string* line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!CanAdmit()) return false;
  *line = std::move(lines_.front());
  lines_.pop_front();
  changed_.notify_all();
  return true;
}

// Until everything is written or the output fails.
void OfflineRun::Serve(std::ostream& output) {
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      const auto finished = [&] {
        return input_ended_ && lines_.empty() && next_to_write_ == next_to_admit_;
      };
      changed_.wait(lock,
                    [&] { return done_.count(next_to_write_) > 0 || CanAdmit() || finished(); });
      if (finished()) return;
    }
    if (!WriteReady(output)) return;
    for (std::string line; NextLine(&line);) Admit(line);
  }
}

// Nothing may run any more when Run returns: the streams point to this object.
void OfflineRun::GiveUp(LineSource* input) {
  input->Stop();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  for (const auto& admitted : admitted_) output_thread_->Cancel(admitted.second);
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return running_ == 0; });
}

OfflineRunResult OfflineRun::Run(LineSource* input, std::ostream& output) {
  const int64_t steps_before = engine_->stats().steps;
  const auto start = std::chrono::steady_clock::now();
  std::thread reader([this, input] { ReadLines(input); });
  Serve(output);
  if (!status_.ok()) GiveUp(input);
  reader.join();
  if (status_.ok()) status_ = input->status();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  OfflineRunResult result;
  result.summary = summary_.ToJson(engine_->info(), engine_->stats().steps - steps_before,
                                   seconds.count(), options_.batch, options_.compare);
  result.status = status_;
  result.all_succeeded = status_.ok() && summary_.failed() == 0 && summary_.mismatches() == 0;
  return result;
}

}  // namespace firesteel
