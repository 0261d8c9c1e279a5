#include "engine/sched/sequence.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/math.h"

namespace firesteel {

Sequence::Sequence(Request request, uint64_t arrival, int32_t max_output)
    : id_(request.id),
      arrival_(arrival),
      sampling_(request.sampling),
      stop_tokens_(std::move(request.stop_tokens)),
      prompt_length_(static_cast<int32_t>(request.prompt.size())),
      max_output_(max_output),
      tokens_(std::move(request.prompt)) {
  if (sampling_.ignore_eos) stop_tokens_.clear();
  // Short outputs never reallocate; a long one does so a handful of times.
  constexpr int32_t kReservedOutput = 1024;
  tokens_.reserve(tokens_.size() + static_cast<size_t>(Min(max_output, kReservedOutput)));
}

SlotSampling Sequence::DeviceSampling() const {
  SlotSampling s;
  s.seed = sampling_.seed;
  s.temperature = sampling_.greedy() ? 0.0F : sampling_.temperature;
  s.top_p = sampling_.top_p;
  s.min_p = sampling_.min_p;
  s.top_k = sampling_.top_k;
  s.presence_penalty = sampling_.presence_penalty;
  s.frequency_penalty = sampling_.frequency_penalty;
  s.repetition_penalty = sampling_.repetition_penalty;
  s.logprobs = sampling_.logprobs;
  s.prompt_logprobs = sampling_.prompt_logprobs;
  s.prompt_length = prompt_length_;
  s.min_tokens = sampling_.min_tokens;
  s.num_bias = static_cast<int32_t>(sampling_.logit_bias.size());
  s.num_bad_words = static_cast<int32_t>(sampling_.bad_words.size());
  s.num_stops = sampling_.min_tokens > 0 ? static_cast<int32_t>(stop_tokens_.size()) : 0;
  return s;
}

void Sequence::WriteRules(SamplingRules* rules) const {
  size_t i = 0;
  for (const auto& [token, bias] : sampling_.logit_bias) {
    rules->bias_token[i] = token;
    rules->bias[i++] = bias;
  }
  int32_t end = 0;
  for (size_t w = 0; w < sampling_.bad_words.size(); ++w) {
    for (const int32_t token : sampling_.bad_words[w]) rules->bad_token[end++] = token;
    rules->bad_end[w] = end;
  }
  if (sampling_.min_tokens > 0) std::copy(stop_tokens_.begin(), stop_tokens_.end(), rules->stop);
}

int32_t Sequence::NumDrafts(int32_t draft_length) const {
  return has_drafts_ ? Min(draft_length, remaining()) : 0;
}

void Sequence::StartAt(int32_t length, int32_t draft_begin) {
  FIRESTEEL_CHECK(!announced_ && length < known(), "a prefix hit leaves at least one row to run");
  computed_ = length;
  draft_gap_ = {0, draft_begin};
  prompt_high_water_ = Max(prompt_high_water_, Min(length, prompt_length_));
}

void Sequence::OnPlanned() {
  announced_ = true;
  ++inflight_;
}

void Sequence::SkipDraftRows(int32_t rows) {
  if (draft_gap_.end == 0) draft_gap_.begin = computed_;
  draft_gap_.end = computed_ + rows;
}

void Sequence::Preempt() {
  FIRESTEEL_CHECK(inflight_ == 0, "a sequence with a step in flight cannot be preempted");
  computed_ = 0;
  phase_ = SequencePhase::kPrefill;
  draft_gap_ = DraftGap{};
  has_drafts_ = false;
  slot_ = SlotId{};
  announced_ = false;
}

int32_t Sequence::CommitPrefill(int32_t rows) {
  computed_ += rows;
  const int32_t before = prompt_high_water_;
  prompt_high_water_ = Max(before, Min(computed_, prompt_length_));
  return prompt_high_water_ - before;
}

Sequence::Emission Sequence::Emit(std::span<const int32_t> tokens, bool has_drafts) {
  phase_ = SequencePhase::kDecode;
  has_drafts_ = has_drafts;
  Emission emission;
  for (const int32_t token : tokens) {
    tokens_.push_back(token);
    ++emission.num_tokens;
    // The stop token is looked for first: one that is also the last token allowed is a stop.
    if (std::find(stop_tokens_.begin(), stop_tokens_.end(), token) != stop_tokens_.end()) {
      emission.finish = FinishReason::kStop;
      break;
    }
    if (remaining() == 0) {
      emission.finish = FinishReason::kLength;
      break;
    }
  }
  return emission;
}

}  // namespace firesteel
