// CommandQueue: the door between callers and the scheduler thread. Decides on the caller's thread whether a request is
// taken, because Submit answers at once.
//
// Any thread pushes; the scheduler thread takes. Invariant: an id is live from the Submit that returned OK until
// Retire; no two live requests share an id, and their number never exceeds what CheckQueueRoom allows.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "engine/api/request.h"
#include "engine/api/token_event.h"
#include "engine/runtime/wake_signal.h"
#include "engine/sched/scheduler_config.h"
#include "kernels/core/status.h"

namespace firesteel {

struct EngineCommand {
  enum class Kind { kSubmit, kAbort };
  Kind kind = Kind::kSubmit;
  RequestId id;
  Request request;  // kSubmit only
};

class CommandQueue {
 public:
  // `scheduler` is notified about every change that the scheduler thread must see.
  CommandQueue(const SchedulerConfig& config, WakeSignal* scheduler);

  // Any thread.
  Status Submit(Request request);
  void Abort(RequestId id);
  void BeginDrain();
  int64_t num_pending_submits() const;

  // Scheduler thread.
  void TakeAll(std::vector<EngineCommand>*
                   commands);  // replaces the contents of `commands`, in order of arrival
  void Retire(
      const std::vector<TokenEvent>& events);  // ids whose last event is among them are free again
  void Fail(const Status& reason);             // refuses every later Submit as Unavailable

  // True once no request is live and none can become so (draining or failed).
  bool finished() const;

 private:
  // Constant after construction.
  const SchedulerConfig& config_;
  WakeSignal* scheduler_;

  mutable std::mutex mutex_;  // guards everything below
  std::vector<EngineCommand> commands_;
  std::unordered_set<RequestId> live_;
  int64_t pending_submits_ = 0;
  bool draining_ = false;
  Status failure_;
};

}  // namespace firesteel
