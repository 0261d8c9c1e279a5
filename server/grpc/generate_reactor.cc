#include "server/grpc/generate_reactor.h"

#include <utility>

#include "server/grpc/status_mapping.h"

namespace firesteel {

namespace {

// For gRPC's own retry policies: when to ask a full queue again.
constexpr char kRetryPushback[] = "grpc-retry-pushback-ms";
constexpr char kRetryPushbackMs[] = "1000";
// What an id or a round is counted as, besides its text; at least their encoded size.
constexpr size_t kBytesPerId = 5;
constexpr size_t kBytesPerRound = 14;

v1::FinishReason ToProto(FinishReason reason) {
  return reason == FinishReason::kLength ? v1::FINISH_REASON_LENGTH : v1::FINISH_REASON_STOP;
}

void FillUsage(const GenerationResult& result, v1::Usage* usage) {
  int64_t accepted = 0;
  for (const int32_t count : result.accepted_per_step) accepted += count;
  usage->set_prompt_tokens(result.prompt_tokens);
  usage->set_completion_tokens(static_cast<int32_t>(result.output_ids.size()));
  usage->set_rounds(static_cast<int32_t>(result.accepted_per_step.size()));
  usage->set_drafted_tokens(result.drafted);
  usage->set_accepted_tokens(accepted);
}

}  // namespace

// What the output thread holds. The reactor outlives it: see invariant 2.
class GenerateReactor::Stream : public ResponseStream {
 public:
  explicit Stream(GenerateReactor* reactor) : reactor_(reactor) {}
  bool OnText(std::string_view text, const GenerationResult& so_far) override {
    return reactor_->OnText(text, so_far);
  }
  void OnFinish(GenerationResult result) override { reactor_->OnFinish(std::move(result)); }

 private:
  GenerateReactor* const reactor_;
};

GenerateReactor::GenerateReactor(grpc::CallbackServerContext* context, OutputThread* output,
                                 std::atomic<int64_t>* active)
    : context_(context), output_(output), active_(active) {
  active_->fetch_add(1);
}

GenerateReactor::~GenerateReactor() { active_->fetch_sub(1); }

void GenerateReactor::Start(GenerationCall call) {
  Result<RequestId> id = output_->Submit(std::move(call), std::make_unique<Stream>(this));
  if (!id.ok()) return Refuse(id.status());
  bool cancelled = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    id_ = *id;
    cancelled = cancelled_;
  }
  if (cancelled) output_->Cancel(*id);
}

void GenerateReactor::Refuse(const Status& why) {
  if (why.code() == StatusCode::kResourceExhausted) {
    context_->AddTrailingMetadata(kRetryPushback, kRetryPushbackMs);
  }
  Next next = Next::kNothing;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    end_ = ToGrpcStatus(why);
    next = TakeNext();
  }
  Do(next);
}

void GenerateReactor::AppendProgress(std::string_view text, const GenerationResult& so_far) {
  pending_.mutable_text()->append(text);
  pending_bytes_ += text.size();
  for (; tokens_taken_ < so_far.output_ids.size(); ++tokens_taken_) {
    pending_.add_token_ids(so_far.output_ids[tokens_taken_]);
    pending_bytes_ += kBytesPerId;
  }
  for (; rounds_taken_ < so_far.accepted_per_step.size(); ++rounds_taken_) {
    v1::Round* round = pending_.add_rounds();
    round->set_drafted(so_far.drafted_per_step[rounds_taken_]);
    round->set_accepted(so_far.accepted_per_step[rounds_taken_]);
    pending_bytes_ += kBytesPerRound;
  }
  has_pending_ = true;
}

bool GenerateReactor::OnText(std::string_view text, const GenerationResult& so_far) {
  Next next = Next::kNothing;
  bool taken = true;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (cancelled_) return false;
    AppendProgress(text, so_far);
    taken = !writing_ || pending_bytes_ <= kPendingLimitBytes;
    if (taken) next = TakeNext();
  }
  // The write in flight may wait for this client for ever; cancelling the call ends it.
  if (!taken) context_->TryCancel();
  Do(next);
  return taken;
}

void GenerateReactor::OnFinish(GenerationResult result) {
  Next next = Next::kNothing;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool completed =
        result.finish == FinishReason::kStop || result.finish == FinishReason::kLength;
    if (completed) {
      AppendProgress("", result);
      pending_.mutable_finish()->set_reason(ToProto(result.finish));
      FillUsage(result, pending_.mutable_finish()->mutable_usage());
      end_ = grpc::Status::OK;
    } else if (cancelled_ || context_->IsCancelled()) {
      end_ = grpc::Status(grpc::StatusCode::CANCELLED, "the client gave the call up");
    } else {
      end_ = ToGrpcStatus(result.error.ok() ? Unavailable("the generation was aborted")
                                            : result.error);
    }
    next = TakeNext();
  }
  // Else the write in flight ends the call, and this object may be gone already.
  if (next != Next::kNothing) Do(next);
}

GenerateReactor::Next GenerateReactor::TakeNext() {
  if (writing_ || finishing_) return Next::kNothing;
  if (has_pending_ && !cancelled_) {
    in_flight_.Clear();
    in_flight_.Swap(&pending_);
    has_pending_ = false;
    pending_bytes_ = 0;
    writing_ = true;
    return Next::kWrite;
  }
  if (!end_.has_value()) return Next::kNothing;
  finishing_ = true;
  return Next::kFinish;
}

void GenerateReactor::Do(Next next) {
  if (next == Next::kWrite) {
    StartWrite(&in_flight_);
  } else if (next == Next::kFinish) {
    const grpc::Status end = *end_;  // nobody else writes it any more
    Finish(end);                     // may delete this object
  }
}

void GenerateReactor::OnWriteDone(bool ok) {
  if (!ok) OnCancel();
  Next next = Next::kNothing;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    next = TakeNext();
  }
  Do(next);
}

void GenerateReactor::OnCancel() {
  std::optional<RequestId> id;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    id = id_;
  }
  if (id.has_value()) output_->Cancel(*id);
}

void GenerateReactor::OnDone() { delete this; }

}  // namespace firesteel
