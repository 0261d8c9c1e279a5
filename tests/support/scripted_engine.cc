#include "tests/support/scripted_engine.h"

#include <chrono>
#include <utility>

namespace firesteel {

ScriptedEngine::ScriptedEngine(ModelInfo info, Script script)
    : info_(std::move(info)), script_(std::move(script)) {}

Status ScriptedEngine::Submit(Request request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (draining_) return Unavailable("the engine is draining");
  if (admit_left_ == 0) return refusal_;
  if (admit_left_ > 0) --admit_left_;
  running_.insert(request.id);
  if (script_) {
    for (TokenEvent& event : script_(request)) {
      event.id = request.id;
      EmitLocked(std::move(event));
    }
  }
  submitted_.push_back(std::move(request));
  changed_.notify_all();
  return Status::Ok();
}

void ScriptedEngine::Abort(RequestId id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  aborted_.push_back(id);
  if (running_.count(id) > 0) {
    TokenEvent event;
    event.id = id;
    event.finish = FinishReason::kAborted;
    EmitLocked(std::move(event));
  }
  changed_.notify_all();
}

bool ScriptedEngine::WaitEvents(int64_t timeout_us, std::vector<TokenEvent>* events) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::microseconds(timeout_us),
                    [this] { return !events_.empty() || shutdown_; });
  if (events_.empty() && shutdown_) return false;
  for (TokenEvent& event : events_) events->push_back(std::move(event));
  events_.clear();
  return true;
}

void ScriptedEngine::BeginDrain() {
  const std::lock_guard<std::mutex> lock(mutex_);
  draining_ = true;
}

EngineStats ScriptedEngine::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  EngineStats stats;
  stats.steps = static_cast<int64_t>(submitted_.size());
  stats.requests_running = static_cast<int64_t>(running_.size());
  stats.healthy = healthy_;
  return stats;
}

void ScriptedEngine::Emit(TokenEvent event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  EmitLocked(std::move(event));
}

void ScriptedEngine::EmitLocked(TokenEvent event) {
  if (event.finish != FinishReason::kNone) running_.erase(event.id);
  events_.push_back(std::move(event));
  changed_.notify_all();
}

void ScriptedEngine::RefuseAfter(int admitted, Status refusal) {
  const std::lock_guard<std::mutex> lock(mutex_);
  admit_left_ = admitted;
  refusal_ = std::move(refusal);
}

void ScriptedEngine::SetHealthy(bool healthy) {
  const std::lock_guard<std::mutex> lock(mutex_);
  healthy_ = healthy;
}

void ScriptedEngine::Shutdown() {
  const std::lock_guard<std::mutex> lock(mutex_);
  shutdown_ = true;
  changed_.notify_all();
}

std::vector<Request> ScriptedEngine::submitted() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return submitted_;
}

std::vector<RequestId> ScriptedEngine::aborted() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return aborted_;
}

bool ScriptedEngine::running(RequestId id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return running_.count(id) > 0;
}

bool ScriptedEngine::WaitForAborts(size_t count) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(2), [&] { return aborted_.size() >= count; });
}

ModelInfo ScriptedModelInfo() {
  ModelInfo info;
  info.architecture = "ScriptedForCausalLM";
  info.vocab_size = 64;
  info.max_model_len = 128;
  info.eos_tokens = {0};
  info.drafter = "dspark";
  info.draft_length = 5;
  info.device = "cpu";
  info.cache_dtype = "fp32";
  info.activations = "fp32";
  info.verification = "token-wise";
  info.threads = 1;
  return info;
}

TokenEvent ScriptedEvent(std::vector<int32_t> tokens, bool is_round, int32_t accepted,
                         FinishReason finish) {
  TokenEvent event;
  event.tokens = std::move(tokens);
  event.is_round = is_round;
  event.drafted = is_round ? 5 : 0;
  event.accepted = accepted;
  event.finish = finish;
  return event;
}

TokenLogprobs ScriptedLogprobs(int32_t token, float logprob, int32_t count) {
  TokenLogprobs logprobs{token, logprob, {}};
  for (int32_t i = 0; i < count; ++i) {
    logprobs.top.push_back({token + i, logprob - static_cast<float>(i)});
  }
  return logprobs;
}

}  // namespace firesteel
