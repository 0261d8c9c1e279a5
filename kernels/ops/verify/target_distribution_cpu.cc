#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/math.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/ops/verify/sampling_math.h"
#include "kernels/ops/verify/target_distribution.h"

namespace firesteel {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

void MaskBadWords(const SlotTables& slots, int32_t slot, int32_t position, float* ruled) {
  const SamplingRules& rules = slots.rules[slot];
  const int32_t* recent = slots.recent_tokens + int64_t{slot} * kRecentTokens;
  int32_t begin = 0;
  for (int32_t w = 0; w < slots.sampling[slot].num_bad_words; ++w) {
    const int32_t* word = rules.bad_token + begin;
    const int32_t last = rules.bad_end[w] - begin - 1;
    begin = rules.bad_end[w];
    bool match = position + 1 >= last;
    for (int32_t i = 0; match && i < last; ++i) {
      match = recent[(position - last + 1 + i) % kRecentTokens] == word[i];
    }
    if (match) ruled[word[last]] = kMasked;
  }
}

void ApplyPenalties(const SlotTables& slots, int32_t slot, float* ruled) {
  // Extreme penalties must leave finite values, or the softmax has no answer.
  constexpr float kLargest = 1e30F;
  const SlotSampling& sampling = slots.sampling[slot];
  const uint8_t* seen = slots.prompt_seen + int64_t{slot} * slots.vocab;
  const int32_t* count = slots.output_count + int64_t{slot} * slots.vocab;
  for (int32_t t = 0; t < slots.vocab; ++t) {
    if ((seen[t] == 0 && count[t] == 0) || ruled[t] == kMasked) continue;
    float logit = ruled[t];
    if (sampling.repetition_penalty != 1.0F) {
      logit =
          logit > 0.0F ? logit / sampling.repetition_penalty : logit * sampling.repetition_penalty;
    }
    if (count[t] > 0) {
      logit -= sampling.frequency_penalty * static_cast<float>(count[t]);
      logit -= sampling.presence_penalty;
    }
    if (!std::isnan(logit)) logit = std::clamp(logit, -kLargest, kLargest);
    ruled[t] = logit;
  }
}

// Zeroes what min-p, top-k and top-p exclude and renormalises.
void Truncate(const SlotSampling& sampling, float* p, int32_t vocab, int32_t* order) {
  const float least = sampling.min_p > 0.0F ? sampling.min_p * p[ArgMax(p, vocab)] : 0.0F;
  int32_t count = 0;
  for (int32_t t = 0; t < vocab; ++t) {
    if (p[t] >= least) {
      order[count++] = t;
    } else {
      p[t] = 0.0F;
    }
  }
  const auto likelier = [p](int32_t x, int32_t y) { return p[x] != p[y] ? p[x] > p[y] : x < y; };
  int32_t kept = count;
  if (sampling.top_k > 0 && sampling.top_k < count) {
    kept = sampling.top_k;
    std::partial_sort(order, order + kept, order + count, likelier);
  } else if (sampling.top_p < 1.0F) {
    std::sort(order, order + count, likelier);
  }
  double mass = 0.0;
  for (int32_t i = 0; i < kept; ++i) mass += static_cast<double>(p[order[i]]);
  if (sampling.top_p < 1.0F) {
    const double wanted = static_cast<double>(sampling.top_p) * mass;
    int32_t nucleus = 0;
    mass = 0.0;
    while (nucleus < kept && mass < wanted) mass += static_cast<double>(p[order[nucleus++]]);
    kept = nucleus;
  }
  for (int32_t i = kept; i < count; ++i) p[order[i]] = 0.0F;
  ScaleRow(p, static_cast<float>(1.0 / mass), nullptr, vocab, p);
}

}  // namespace

void ApplyRules(const SlotTables& slots, int32_t slot, int32_t position, const float* logits,
                float* ruled) {
  const SlotSampling& sampling = slots.sampling[slot];
  const SamplingRules& rules = slots.rules[slot];
  std::copy_n(logits, slots.vocab, ruled);
  MaskBadWords(slots, slot, position, ruled);
  if (position + 1 - sampling.prompt_length < sampling.min_tokens) {
    for (int32_t i = 0; i < sampling.num_stops; ++i) ruled[rules.stop[i]] = kMasked;
  }
  for (int32_t i = 0; i < sampling.num_bias; ++i) ruled[rules.bias_token[i]] += rules.bias[i];
  if (sampling.counts_tokens()) ApplyPenalties(slots, slot, ruled);
}

void TargetDistribution(const SlotSampling& sampling, const float* ruled, int32_t vocab,
                        const RowScratch& s) {
  ScaleRow(ruled, 1.0F / sampling.temperature, nullptr, vocab, s.p);
  const float top = s.p[ArgMax(s.p, vocab)];
  const float sum = ExpShifted(s.p, vocab, top);
  ScaleRow(s.p, 1.0F / sum, nullptr, vocab, s.p);
  if (sampling.min_p > 0.0F || sampling.top_k > 0 || sampling.top_p < 1.0F) {
    Truncate(sampling, s.p, vocab, s.order);
  }
}

void RecordLogprobs(const float* logits, int32_t vocab, int32_t token, int32_t num_top,
                    float* scratch, LogprobRecord* record) {
  const int32_t best = ArgMax(logits, vocab);
  std::copy_n(logits, vocab, scratch);
  // The best token's share of the sum is 1, which would swallow the rest of a sure distribution.
  scratch[best] = kMasked;
  const double log_sum = std::log1p(static_cast<double>(ExpShifted(scratch, vocab, logits[best])));
  const auto logprob = [&](int32_t t) {
    return static_cast<float>(static_cast<double>(logits[t]) - static_cast<double>(logits[best]) -
                              log_sum);
  };
  record->token = token;
  record->logprob = logprob(token);
  record->rank = 1 + static_cast<int32_t>(std::count_if(
                         logits, logits + vocab, [&](float x) { return x > logits[token]; }));
  const int32_t wanted = Min(Min(num_top, vocab), kMaxLogprobs);
  int32_t found = 0;
  for (int32_t t = 0; t < vocab && wanted > 0; ++t) {
    if (found == wanted && !(logits[t] > logits[record->top_token[found - 1]])) continue;
    if (found < wanted) ++found;
    int32_t at = found - 1;
    for (; at > 0 && logits[t] > logits[record->top_token[at - 1]]; --at) {
      record->top_token[at] = record->top_token[at - 1];
    }
    record->top_token[at] = t;
  }
  record->num_top = found;
  for (int32_t i = 0; i < found; ++i) record->top_logprob[i] = logprob(record->top_token[i]);
}

}  // namespace firesteel
