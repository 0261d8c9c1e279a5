// One Generate call: takes text from the output thread, writes messages to the client, ends with a status.
//
// Threads: Start runs in the handler; OnText and OnFinish, through the stream, on the output thread; the reactions
// On... on gRPC's threads; all at once. Owner: gRPC, until OnDone, where the reactor deletes itself.
// Invariants:
//  1. One write is in flight; what comes meanwhile is merged into one message, at most kPendingLimitBytes of it.
//     Beyond that the client counts as gone, so that it can hold neither memory nor the output thread.
//  2. Finish is called exactly once, without a write in flight, after the stream's last call; nothing touches the
//     reactor afterwards. A call that was admitted is therefore never deleted while the engine may still speak of
//     it.
//  3. A thread that chose to do nothing does not touch the reactor again: another one may end it. gRPC's own reactions
//     are exempt, it waits for them.
//  4. gRPC is called without the mutex, because it may run a reaction before it returns.
#pragma once

#include <firesteel/v1/generate.pb.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "server/stream/output_thread.h"
#include "server/stream/response_stream.h"

namespace firesteel {

class GenerateReactor : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  static constexpr size_t kPendingLimitBytes = 1 << 20;

  // `output` and `active`, which counts the reactors, outlive this object; `context` belongs to the call.
  GenerateReactor(grpc::CallbackServerContext* context, OutputThread* output,
                  std::atomic<int64_t>* active);

  // Submits the call, or ends it with the refusal. Exactly one of Start and Refuse is called, once.
  void Start(GenerationCall call);
  void Refuse(const Status& why);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  class Stream;

  ~GenerateReactor() override;
  bool OnText(std::string_view text, const GenerationResult& so_far);
  void OnFinish(GenerationResult result);
  void AppendProgress(std::string_view text, const GenerationResult& so_far);

  // What gRPC is told next. Chosen under the mutex, together with what makes it possible, and done without it: between
  // the two nobody else can end the call.
  enum class Next { kNothing, kWrite, kFinish };
  Next TakeNext();  // REQUIRES: mutex_ is held
  void Do(Next next);

  grpc::CallbackServerContext* const context_;
  OutputThread* const output_;
  std::atomic<int64_t>* const active_;
  v1::GenerateResponse in_flight_;  // untouched between StartWrite and OnWriteDone

  std::mutex mutex_;  // guards all below
  v1::GenerateResponse pending_;
  bool has_pending_ = false;
  size_t pending_bytes_ = 0;
  size_t tokens_taken_ = 0;  // output ids that are in a message
  size_t rounds_taken_ = 0;
  bool writing_ = false;
  bool cancelled_ = false;
  bool finishing_ = false;
  std::optional<RequestId> id_;
  std::optional<grpc::Status> end_;  // set by the stream's last call
};

}  // namespace firesteel
