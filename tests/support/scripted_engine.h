// An Engine for tests of the front ends: what it emits is decided by the test, token by token.
//
// Threads: any. Two ways to drive it: Emit() from the test, or a script that answers every admitted request at once.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "engine/api/engine.h"

namespace firesteel {

class ScriptedEngine : public Engine {
 public:
  using Script = std::function<std::vector<TokenEvent>(const Request&)>;

  // The id of each event of a script is filled in by the engine.
  explicit ScriptedEngine(ModelInfo info, Script script = nullptr);

  const ModelInfo& info() const override { return info_; }
  Status Submit(Request request) override;
  void Abort(RequestId id) override;
  bool WaitEvents(int64_t timeout_us, std::vector<TokenEvent>* events) override;
  void BeginDrain() override;
  EngineStats stats() const override;

  void Emit(TokenEvent event);
  // Admits this many more requests, then refuses with `refusal` until it is called again.
  void RefuseAfter(int admitted, Status refusal);
  void SetHealthy(bool healthy);
  void Shutdown();  // WaitEvents returns false once all events were taken

  std::vector<Request> submitted() const;
  std::vector<RequestId> aborted() const;
  bool running(RequestId id) const;
  // Waits until `count` requests were aborted; false after two seconds.
  bool WaitForAborts(size_t count);

 private:
  void EmitLocked(TokenEvent event);

  const ModelInfo info_;
  const Script script_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TokenEvent> events_;
  std::vector<Request> submitted_;
  std::vector<RequestId> aborted_;
  std::set<RequestId> running_;
  int admit_left_ = -1;  // -1: no limit
  Status refusal_;
  bool healthy_ = true;
  bool draining_ = false;
  bool shutdown_ = false;
};

// The facts most tests need: vocabulary 64, 128 positions, end token 0, drafter "dspark" with K = 5.
ModelInfo ScriptedModelInfo();

// A round (or, with is_round false, the prompt step) that emits `tokens`.
TokenEvent ScriptedEvent(std::vector<int32_t> tokens, bool is_round, int32_t accepted,
                         FinishReason finish = FinishReason::kNone);

// Log-probabilities of `token`: `logprob` for itself, and behind it the next `count` - 1 tokens, each 1 lower.
TokenLogprobs ScriptedLogprobs(int32_t token, float logprob, int32_t count);

}  // namespace firesteel
