#include "server/grpc/generate_reactor.h"

#include <utility>

#include "server/grpc/status_mapping.h"

namespace firesteel {

namespace {

// For gRPC's own retry policies: when to ask a full queue again.
constexpr char kRetryPushback[] = "grpc-retry-pushback-ms";
constexpr char kRetryPushbackMs[] = "1000";
// What these are counted as; at least their encoded size.
constexpr size_t kBytesPerId = 5;
constexpr size_t kBytesPerRound = 14;
constexpr size_t kBytesPerLogprobs = 24;
constexpr size_t kBytesPerTop = 14;
// Of the log-probabilities of the prompt in one message. Clients take 4 MiB unless they are told otherwise.
constexpr size_t kPromptPartBytes = 1 << 20;

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

size_t CountedBytes(const TokenLogprobs& logprobs) {
  return kBytesPerLogprobs + kBytesPerTop * logprobs.top.size();
}

void Fill(const TokenLogprobs& logprobs, v1::TokenLogprobs* out) {
  out->set_token_id(logprobs.token);
  out->set_logprob(logprobs.logprob);
  out->set_rank(logprobs.rank);
  for (const TokenLogprob& entry : logprobs.top) {
    v1::TopLogprob* top = out->add_top();
    top->set_token_id(entry.token);
    top->set_logprob(entry.logprob);
  }
}

void CancelAll(OutputThread* output, const std::vector<RequestId>& ids) {
  for (const RequestId id : ids) output->Cancel(id);
}

}  // namespace

// What the output thread holds. The reactor outlives it: see invariant 2.
class GenerateReactor::Stream : public ResponseStream {
 public:
  Stream(GenerateReactor* reactor, size_t index) : reactor_(reactor), index_(index) {}
  bool OnText(std::string_view text, const GenerationResult& so_far) override {
    return reactor_->OnText(index_, text, so_far);
  }
  void OnFinish(GenerationResult result) override { reactor_->OnFinish(index_, std::move(result)); }

 private:
  GenerateReactor* const reactor_;
  const size_t index_;
};

GenerateReactor::GenerateReactor(grpc::CallbackServerContext* context, OutputThread* output,
                                 std::atomic<int64_t>* active)
    : context_(context), output_(output), active_(active) {
  active_->fetch_add(1);
}

GenerateReactor::~GenerateReactor() { active_->fetch_sub(1); }

void GenerateReactor::Start(GrpcGeneration generation) {
  std::vector<GenerationCall>& calls = generation.calls;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    choices_ = std::vector<Choice>(calls.size());
    open_ = calls.size();
    echo_ = std::move(generation.echo);
    drop_output_ = generation.drop_output;
  }
  Status refusal;
  for (size_t i = 0; i < calls.size(); ++i) {
    Result<RequestId> id = output_->Submit(std::move(calls[i]), std::make_unique<Stream>(this, i));
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!id.ok()) {
      open_ -= calls.size() - i;
      refusal = id.status();
      break;
    }
    choices_[i].id = *id;
  }
  std::vector<RequestId> in_vain;
  Next next = Next::kNothing;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    settled_ = refusal.ok();
    // A cancellation or failure that came before knew some of the ids only.
    if (!settled_ || cancelled_ || !failure_.ok()) in_vain = Admitted();
    next = TakeNext();
  }
  CancelAll(output_, in_vain);
  if (!refusal.ok()) return Refuse(refusal);
  Do(next);
}

void GenerateReactor::Refuse(const Status& why) {
  if (why.code() == StatusCode::kResourceExhausted) {
    context_->AddTrailingMetadata(kRetryPushback, kRetryPushbackMs);
  }
  Next next = Next::kNothing;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    settled_ = true;
    refused_ = true;
    failure_ = ToGrpcStatus(why);
    if (open_ == 0) end_ = failure_;  // else the last admitted choice sets it
    next = TakeNext();
  }
  Do(next);
}

void GenerateReactor::AppendProgress(std::string_view text, const GenerationResult& so_far,
                                     Choice* choice) {
  size_t part_bytes = kPromptPartBytes;
  for (size_t& i = choice->prompt_logprobs_taken; i < so_far.prompt_logprobs.size(); ++i) {
    const size_t bytes = CountedBytes(so_far.prompt_logprobs[i]);
    if (part_bytes + bytes > kPromptPartBytes) {
      choice->prompt_parts.emplace_back();
      part_bytes = 0;
    }
    part_bytes += bytes;
    Fill(so_far.prompt_logprobs[i], choice->prompt_parts.back().add_prompt_logprobs());
  }
  size_t bytes = text.size();
  choice->pending.mutable_text()->append(text);
  for (size_t& i = choice->tokens_taken; i < so_far.output_ids.size(); ++i) {
    choice->pending.add_token_ids(so_far.output_ids[i]);
    bytes += kBytesPerId;
  }
  for (size_t& i = choice->rounds_taken; i < so_far.accepted_per_step.size(); ++i) {
    v1::Round* round = choice->pending.add_rounds();
    round->set_drafted(so_far.drafted_per_step[i]);
    round->set_accepted(so_far.accepted_per_step[i]);
    bytes += kBytesPerRound;
  }
  for (size_t& i = choice->logprobs_taken; i < so_far.logprobs.size(); ++i) {
    Fill(so_far.logprobs[i], choice->pending.add_logprobs());
    bytes += CountedBytes(so_far.logprobs[i]);
  }
  choice->has_pending = true;
  choice->pending_bytes += bytes;
  pending_bytes_ += bytes;
}

bool GenerateReactor::OnText(size_t index, std::string_view text, const GenerationResult& so_far) {
  Next next = Next::kNothing;
  bool taken = true;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (cancelled_ || !failure_.ok()) return false;
    if (drop_output_) return true;
    AppendProgress(text, so_far, &choices_[index]);
    taken = !writing_ || pending_bytes_ <= kPendingLimitBytes;
    if (taken) next = TakeNext();
  }
  // The write in flight may wait for this client for ever; cancelling the call ends it.
  if (!taken) context_->TryCancel();
  Do(next);
  return taken;
}

void GenerateReactor::Complete(const GenerationResult& result, Choice* choice) {
  AppendProgress("", result, choice);
  v1::Finish* finish = choice->pending.mutable_finish();
  finish->set_reason(ToProto(result.finish));
  FillUsage(result, finish->mutable_usage());
}

void GenerateReactor::OnFinish(size_t index, GenerationResult result) {
  Next next = Next::kNothing;
  OutputThread* const output = output_;  // for when this object may be gone
  std::vector<RequestId> in_vain;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    --open_;
    const bool completed =
        result.finish == FinishReason::kStop || result.finish == FinishReason::kLength;
    if (completed && drop_output_) {
      result.finish = FinishReason::kLength;
      result.output_ids.clear();
      result.logprobs.clear();
    }
    if (completed) {
      Complete(result, &choices_[index]);
    } else if (failure_.ok()) {
      if (cancelled_ || context_->IsCancelled()) {
        failure_ = grpc::Status(grpc::StatusCode::CANCELLED, "the client gave the call up");
      } else {
        failure_ = ToGrpcStatus(result.error.ok() ? Unavailable("the generation was aborted")
                                                  : result.error);
      }
      if (open_ > 0) in_vain = Admitted();
    }
    if (open_ == 0) end_ = failure_;
    next = TakeNext();
  }
  // Else another thread ends the call, and this object may be gone already.
  if (next != Next::kNothing) Do(next);
  CancelAll(output, in_vain);
}

bool GenerateReactor::TakeMessage(size_t index) {
  Choice& choice = choices_[index];
  in_flight_.Clear();
  if (!choice.prompt_parts.empty()) {
    in_flight_.Swap(&choice.prompt_parts.front());
    choice.prompt_parts.pop_front();
  } else if (choice.has_pending) {
    in_flight_.Swap(&choice.pending);
    choice.has_pending = false;
    pending_bytes_ -= std::exchange(choice.pending_bytes, 0);
  } else {
    return false;
  }
  in_flight_.set_index(static_cast<int32_t>(index));
  if (!std::exchange(choice.begun, true)) in_flight_.mutable_text()->insert(0, echo_);
  return true;
}

GenerateReactor::Next GenerateReactor::TakeNext() {
  if (!settled_ || writing_ || finishing_) return Next::kNothing;
  for (size_t i = 0; i < choices_.size() && !refused_ && !cancelled_; ++i) {
    const size_t index = std::exchange(next_choice_, (next_choice_ + 1) % choices_.size());
    if (!TakeMessage(index)) continue;
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
  std::vector<RequestId> ids;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    ids = Admitted();
  }
  CancelAll(output_, ids);
}

std::vector<RequestId> GenerateReactor::Admitted() const {
  std::vector<RequestId> ids;
  for (const Choice& choice : choices_) {
    if (choice.id.has_value()) ids.push_back(*choice.id);
  }
  return ids;
}

void GenerateReactor::OnDone() { delete this; }

}  // namespace firesteel
