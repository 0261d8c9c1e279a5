// The engine as a host program sees it: submit token ids, receive token events. No text, no sockets.
//
// Threads: Submit, Abort, stats() and BeginDrain may be called from any thread. WaitEvents has exactly one caller (the
// output thread). Create starts the scheduler and rank threads; the destructor aborts what still runs and joins them.
// Contract: every request whose Submit returned OK gets exactly one event with finish != kNone, and it is its last one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/api/engine_options.h"
#include "engine/api/engine_stats.h"
#include "engine/api/request.h"
#include "engine/api/token_event.h"
#include "kernels/core/status.h"

namespace firesteel {

// Facts about the loaded model that front ends need. Constant after construction.
struct ModelInfo {
  std::string architecture;  // config.json architectures[0]
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;        // prompt + output positions
  std::vector<int32_t> eos_tokens;  // default stop tokens
  std::string drafter;              // in effect: "dspark" or "none"
  int32_t draft_length = 0;         // K in effect
  std::string device;               // "cpu", "cuda"
  std::string cache_dtype;          // "fp32", "bf16", "fp8"
  std::string activations;          // "fp32", "bf16"
  std::string verification;         // "token-wise"
  int32_t tp = 1;                   // tensor-parallel ranks
  int32_t dep = 1;                  // data + expert parallel ranks
  int32_t threads = 0;              // CPU workers in use
  int32_t max_live_requests = 0;    // running and waiting together; more are refused
};

class Engine {
 public:
  virtual ~Engine() = default;

  static Result<std::unique_ptr<Engine>> Create(const EngineOptions& options);

  virtual const ModelInfo& info() const = 0;

  // Takes the request or says why not, at once: InvalidArgument (bad ids, prompt too long for max_model_len),
  // ResourceExhausted (queue full), Unavailable (draining or failed). Nothing is held after an error.
  virtual Status Submit(Request request) = 0;

  // Ends a request early; its last event has finish == kAborted unless it finished first. Unknown ids are ignored.
  virtual void Abort(RequestId id) = 0;

  // Blocks until there are events, or `timeout_us` passed, or the engine is shut down and all events were taken.
  // Appends to `events`. Returns false only in the last case.
  virtual bool WaitEvents(int64_t timeout_us, std::vector<TokenEvent>* events) = 0;

  // Refuses new requests from now on; running ones finish. Idempotent.
  virtual void BeginDrain() = 0;

  virtual EngineStats stats() const = 0;
};

}  // namespace firesteel
