// One Generate call: takes the text of its choices from the output thread, writes messages to the client, ends with a
// status.
//
// Threads: Start runs in the handler; OnText and OnFinish, through the streams, on the output thread; the reactions
// On... on gRPC's threads; all at once. Owner: gRPC, until OnDone, where the reactor deletes itself.
// Invariants:
//  1. One write is in flight; what comes meanwhile is merged into one message per choice, at most kPendingLimitBytes of
//     all. Beyond that the client counts as gone, so that it can hold neither memory nor the output thread. Prompt
//     log-probabilities are not counted: they come at once, and the request bounds them.
//  2. Finish is called exactly once, without a write in flight, after the last call of every stream; nothing touches the
//     reactor afterwards. A call that was admitted is therefore never deleted while the engine may still speak of
//     it.
//  3. A thread that chose to do nothing does not touch the reactor again, unless a stream that it serves is open: another
//     one may end it. The handler and gRPC's own reactions are exempt, gRPC waits for them.
//  4. gRPC is called without the mutex, because it may run a reaction before it returns.
//  5. gRPC is told nothing before every choice is admitted or one is refused: a refused call has no messages.
#pragma once

#include <firesteel/v1/generate.pb.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/grpc/parse_request.h"
#include "server/stream/output_thread.h"
#include "server/stream/response_stream.h"

namespace firesteel {

class GenerateReactor : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  static constexpr size_t kPendingLimitBytes = 1 << 20;

  // `output` and `active`, which counts the reactors, outlive this object; `context` belongs to the call.
  GenerateReactor(grpc::CallbackServerContext* context, OutputThread* output,
                  std::atomic<int64_t>* active);

  // Submits all choices, or ends the call with the refusal of one. Exactly one of Start and Refuse is called, once.
  void Start(GrpcGeneration generation);
  void Refuse(const Status& why);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  class Stream;

  ~GenerateReactor() override;
  // What the client has not got yet of one choice.
  struct Choice {
    std::deque<v1::GenerateResponse> prompt_parts;  // go first
    v1::GenerateResponse pending;
    bool has_pending = false;
    size_t pending_bytes = 0;
    bool begun = false;       // its first message is written
    size_t tokens_taken = 0;  // output ids that are in a message
    size_t rounds_taken = 0;  // also of the rest
    size_t logprobs_taken = 0;
    size_t prompt_logprobs_taken = 0;
    std::optional<RequestId> id;  // once admitted
  };

  bool OnText(size_t index, std::string_view text, const GenerationResult& so_far);
  void OnFinish(size_t index, GenerationResult result);
  // These REQUIRE: mutex_ is held.
  void AppendProgress(std::string_view text, const GenerationResult& so_far, Choice* choice);
  void Complete(const GenerationResult& result, Choice* choice);
  bool TakeMessage(size_t index);  // the choice's next one to in_flight_; false when it has none
  std::vector<RequestId> Admitted() const;

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
  std::vector<Choice> choices_;
  size_t next_choice_ = 0;    // whose turn it is to be written
  size_t pending_bytes_ = 0;  // of all choices
  size_t open_ = 0;           // streams whose last call has not come
  bool drop_output_ = false;
  std::string echo_;
  bool settled_ = false;  // every choice is admitted, or one is refused
  bool refused_ = false;
  bool writing_ = false;
  bool cancelled_ = false;
  bool finishing_ = false;
  grpc::Status failure_;             // of the first choice that failed
  std::optional<grpc::Status> end_;  // set by the last call of the last stream
};

}  // namespace firesteel
