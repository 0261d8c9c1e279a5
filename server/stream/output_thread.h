// The one caller of Engine::WaitEvents: hands each event's text to the stream of its request.
//
// Threads: Submit, Cancel and live() may be called from any thread; streams are called from the output thread only.
// Invariants:
//  1. A stream whose Submit returned OK gets exactly one OnFinish, at the latest from Stop().
//  2. A stop string ends the request here and aborts it in the engine; what the engine still says about it is dropped.
//  3. A stream that returns false from OnText is finished with kAborted; it never delays the others.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "engine/api/engine.h"
#include "server/stream/generation_call.h"
#include "server/stream/generation_observer.h"
#include "server/stream/response_stream.h"
#include "server/stream/text_assembler.h"
#include "server/text/tokenizer.h"

namespace firesteel {

class OutputThread {
 public:
  // Starts the thread. `engine`, `tokenizer` and `observer` (null: nobody) outlive this object.
  OutputThread(Engine* engine, const Tokenizer* tokenizer, GenerationObserver* observer = nullptr);
  ~OutputThread();
  OutputThread(const OutputThread&) = delete;
  OutputThread& operator=(const OutputThread&) = delete;

  // Hands the call to the engine. An error is the engine's refusal (see Engine::Submit) and destroys `stream` silently.
  Result<RequestId> Submit(GenerationCall call, std::unique_ptr<ResponseStream> stream);

  // Ends a request early; its stream gets OnFinish(kAborted) unless it finished first. Unknown ids are ignored.
  void Cancel(RequestId id);

  // Requests whose OnFinish has not returned yet.
  int64_t live() const { return live_count_.load(); }

  // Aborts what still runs and joins the thread. Idempotent; later Submits are refused as Unavailable.
  void Stop();

 private:
  struct Live {
    TextAssembler assembler;
    std::unique_ptr<ResponseStream> stream;
    std::chrono::steady_clock::time_point submitted;
    GenerationTimes times;
  };

  void Run();
  void Deliver(const TokenEvent& event);
  void ObserveTokens(Live* live, int64_t tokens);
  void Finish(RequestId id, GenerationResult result);
  Live* Find(RequestId id);

  Engine* const engine_;
  const Tokenizer* const tokenizer_;
  GenerationObserver* const observer_;  // may be null
  std::atomic<uint64_t> next_id_{1};
  std::atomic<int64_t> live_count_{0};
  std::atomic<bool> stopping_{false};
  std::mutex
      mutex_;  // guards live_'s structure; what a Live holds is touched by the output thread only
  std::unordered_map<RequestId, std::unique_ptr<Live>> live_;
  std::thread thread_;
};

}  // namespace firesteel
