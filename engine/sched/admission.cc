#include "engine/sched/admission.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/sched/cache_manager.h"
#include "kernels/core/math.h"

namespace firesteel {

int32_t MaxOutputTokens(const SchedulerConfig& config, const Request& request) {
  return Min(request.sampling.max_tokens,
             config.max_model_len - static_cast<int32_t>(request.prompt.size()));
}

namespace {

Status CheckToken(const SchedulerConfig& config, const char* where, int32_t token) {
  if (token >= 0 && token < config.vocab_size) return Status::Ok();
  return InvalidArgument(std::string(where) + " has token " + std::to_string(token) +
                         ", needs 0.." + std::to_string(config.vocab_size - 1));
}

// Tokens in the sampling options exist, and some token is always allowed.
Status CheckSamplingTokens(const SchedulerConfig& config, const Request& request) {
  const SamplingParams& sampling = request.sampling;
  for (const auto& [token, bias] : sampling.logit_bias) {
    FIRESTEEL_RETURN_IF_ERROR(CheckToken(config, "logit_bias", token));
  }
  for (const std::vector<int32_t>& word : sampling.bad_words) {
    for (const int32_t token : word) {
      FIRESTEEL_RETURN_IF_ERROR(CheckToken(config, "bad_words", token));
    }
  }
  int64_t forbidden = static_cast<int64_t>(sampling.bad_words.size());
  if (sampling.min_tokens > 0 && !sampling.ignore_eos) {
    const int64_t stops = static_cast<int64_t>(request.stop_tokens.size());
    if (stops > kMaxMaskedStops) {
      return InvalidArgument("min_tokens with " + std::to_string(stops) +
                             " stop tokens, needs at most " + std::to_string(kMaxMaskedStops));
    }
    for (const int32_t token : request.stop_tokens) {
      FIRESTEEL_RETURN_IF_ERROR(CheckToken(config, "stop_tokens", token));
    }
    forbidden += stops;
  }
  if (forbidden < config.vocab_size) return Status::Ok();
  return InvalidArgument("bad_words and min_tokens may forbid " + std::to_string(forbidden) +
                         " tokens, needs fewer than the vocabulary's " +
                         std::to_string(config.vocab_size));
}

}  // namespace

Status CheckRequest(const SchedulerConfig& config, const Request& request) {
  if (!request.id.valid()) return InvalidArgument("the request has no id");
  FIRESTEEL_RETURN_IF_ERROR(request.sampling.Validate());
  const int64_t prompt_length = static_cast<int64_t>(request.prompt.size());
  if (prompt_length == 0) return InvalidArgument("the prompt is empty, needs at least one token");
  if (prompt_length + 1 > config.max_model_len) {
    return InvalidArgument("the prompt has " + std::to_string(prompt_length) +
                           " tokens, needs at most " + std::to_string(config.max_model_len - 1) +
                           ": the model's length is " + std::to_string(config.max_model_len) +
                           " with at least one output token");
  }
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    const int32_t token = request.prompt[i];
    if (token < 0 || token >= config.vocab_size) {
      return InvalidArgument("prompt token " + std::to_string(i) + " is " + std::to_string(token) +
                             ", needs 0.." + std::to_string(config.vocab_size - 1));
    }
  }
  FIRESTEEL_RETURN_IF_ERROR(CheckSamplingTokens(config, request));
  const int64_t length = prompt_length + MaxOutputTokens(config, request);
  for (size_t g = 0; g < config.cache.groups.size(); ++g) {
    // Prefill chunks shrink to what is free; a verify block cannot.
    const int64_t needed = BlocksToHold(config.cache.groups[g], config.cache.lookahead_tokens,
                                        length, config.draft_length + 1);
    if (needed > config.num_blocks[g]) {
      return InvalidArgument("the prompt and its output of up to " + std::to_string(length) +
                             " tokens take " + std::to_string(needed) + " blocks of cache group '" +
                             config.cache.groups[g].name + "', which has " +
                             std::to_string(config.num_blocks[g]));
    }
  }
  return Status::Ok();
}

Status CheckQueueRoom(const SchedulerConfig& config, int64_t live_requests) {
  if (live_requests < config.max_live_requests()) return Status::Ok();
  return ResourceExhausted(std::to_string(live_requests) + " requests are running or waiting, " +
                           std::to_string(config.max_live_requests()) + " are allowed (" +
                           std::to_string(config.limits.max_sequences) + " slots and a queue of " +
                           std::to_string(config.max_queue) + ")");
}

void AdmissionQueue::PushBack(std::unique_ptr<Sequence> sequence) {
  waiting_.push_back(std::move(sequence));
}

void AdmissionQueue::PushFront(std::unique_ptr<Sequence> sequence) {
  waiting_.push_front(std::move(sequence));
}

std::unique_ptr<Sequence> AdmissionQueue::PopFront() {
  std::unique_ptr<Sequence> sequence = std::move(waiting_.front());
  waiting_.pop_front();
  return sequence;
}

std::unique_ptr<Sequence> AdmissionQueue::Remove(RequestId id) {
  const auto it = std::find_if(waiting_.begin(), waiting_.end(),
                               [id](const auto& sequence) { return sequence->id() == id; });
  if (it == waiting_.end()) return nullptr;
  std::unique_ptr<Sequence> sequence = std::move(*it);
  waiting_.erase(it);
  return sequence;
}

}  // namespace firesteel
