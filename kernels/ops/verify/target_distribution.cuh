// What the target samples from, by one block of threads: the device form of target_distribution.h, with the same rules in
// the same order and the same ties. All threads of the block must call these functions; what they write is visible to
// the block when they return.
//
// A cut needs no sorted row: it is the value of the last entry that is kept and the first token whose equal entry is not.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/core/float_codec.h"
#include "kernels/core/math.h"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/row_sampling.cuh"
#include "kernels/ops/step_meta.h"
#include "kernels/ops/verify/sequence_result.h"

namespace firesteel {

inline constexpr int32_t kVerifyThreads = 1024;

__device__ inline float MaskedLogit() { return BitsFloat(0xff800000U); }  // -infinity

// A thread per bad word; words that end alike write the same value.
__device__ inline void MaskBadWords(const SlotTables& slots, int32_t slot, int32_t position,
                                    float* ruled) {
  const SamplingRules& rules = slots.rules[slot];
  const int32_t* recent = slots.recent_tokens + int64_t{slot} * kRecentTokens;
  const int32_t words = slots.sampling[slot].num_bad_words;
  for (int32_t w = static_cast<int32_t>(threadIdx.x); w < words; w += kVerifyThreads) {
    const int32_t begin = w == 0 ? 0 : rules.bad_end[w - 1];
    const int32_t* word = rules.bad_token + begin;
    const int32_t last = rules.bad_end[w] - begin - 1;
    bool match = position + 1 >= last;
    for (int32_t i = 0; match && i < last; ++i) {
      match = recent[(position - last + 1 + i) % kRecentTokens] == word[i];
    }
    if (match) ruled[word[last]] = MaskedLogit();
  }
}

// A thread per entry; the first entry of a token adds those behind it too, in order.
__device__ inline void AddBias(const SamplingRules& rules, int32_t count, float* ruled) {
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kVerifyThreads) {
    const int32_t token = rules.bias_token[i];
    bool first = true;
    for (int32_t j = 0; first && j < i; ++j) first = rules.bias_token[j] != token;
    if (!first) continue;
    float logit = ruled[token];
    for (int32_t j = i; j < count; ++j) {
      if (rules.bias_token[j] == token) logit += rules.bias[j];
    }
    ruled[token] = logit;
  }
}

__device__ inline void ApplyPenalties(const SlotTables& slots, int32_t slot, float* ruled) {
  // Extreme penalties must leave finite values, or the softmax has no answer.
  constexpr float kLargest = 1e30F;
  const SlotSampling& sampling = slots.sampling[slot];
  const uint8_t* seen = slots.prompt_seen + int64_t{slot} * slots.vocab;
  const int32_t* count = slots.output_count + int64_t{slot} * slots.vocab;
  for (int32_t t = static_cast<int32_t>(threadIdx.x); t < slots.vocab; t += kVerifyThreads) {
    float logit = ruled[t];
    if ((seen[t] == 0 && count[t] == 0) || logit == MaskedLogit()) continue;
    if (sampling.repetition_penalty != 1.0F) {
      logit =
          logit > 0.0F ? logit / sampling.repetition_penalty : logit * sampling.repetition_penalty;
    }
    if (count[t] > 0) {
      logit -= sampling.frequency_penalty * static_cast<float>(count[t]);
      logit -= sampling.presence_penalty;
    }
    if (logit > kLargest) logit = kLargest;  // neither holds for NaN
    if (logit < -kLargest) logit = -kLargest;
    ruled[t] = logit;
  }
}

__device__ inline void ApplyRules(const SlotTables& slots, int32_t slot, int32_t position,
                                  const float* logits, float* ruled) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const SlotSampling& sampling = slots.sampling[slot];
  const SamplingRules& rules = slots.rules[slot];
  for (int32_t t = thread; t < slots.vocab; t += kVerifyThreads) ruled[t] = logits[t];
  __syncthreads();
  MaskBadWords(slots, slot, position, ruled);
  if (position + 1 - sampling.prompt_length < sampling.min_tokens) {
    for (int32_t i = thread; i < sampling.num_stops; i += kVerifyThreads) {
      ruled[rules.stop[i]] = MaskedLogit();
    }
  }
  __syncthreads();
  AddBias(rules, sampling.num_bias, ruled);
  __syncthreads();
  if (!sampling.counts_tokens()) return;
  ApplyPenalties(slots, slot, ruled);
  __syncthreads();
}

// The entries of a row of probabilities that are kept. Probabilities are not negative, so their bits are ordered as they.
struct Cut {
  uint32_t bits;  // larger entries are kept
  int32_t end;    // of equal ones, those of lower tokens

  __device__ bool Keeps(float p, int32_t token) const {
    const uint32_t own = FloatBits(p);
    return own > bits || (own == bits && token < end);
  }
};

// Sum of `amount` over the kept entries that satisfy `wanted`.
template <typename T, typename Amount, typename Wanted>
__device__ T SumKept(const float* p, int32_t vocab, const Cut& cut, Amount amount, Wanted wanted) {
  T sum = T{};
  for (int32_t t = static_cast<int32_t>(threadIdx.x); t < vocab; t += kVerifyThreads) {
    const float own = p[t];
    if (cut.Keeps(own, t) && wanted(own, t)) sum += amount(own);
  }
  return BlockReduce<kVerifyThreads>(sum, T{}, AddOp{});
}

// Where the kept entries, best first, reach `needed`.
template <typename T>
struct Level {
  uint32_t bits;  // value of the entry that reaches it
  T above;        // what the larger ones amount to
};

// The sums of every pivot have one order, so they grow with the set of entries and the search is sound for doubles too.
// REQUIRES: 0 < needed <= the amount of all kept entries; no kept entry is larger than `most`.
template <typename T, typename Amount>
__device__ Level<T> FindLevel(const float* p, int32_t vocab, const Cut& cut, float most, T needed,
                              Amount amount) {
  constexpr uint32_t kPivots = 3;
  uint32_t low = cut.bits;              // entries from here on reach it
  uint32_t high = FloatBits(most) + 1;  // entries from here on do not
  T above = T{};
  while (high > low + 1) {
    const uint32_t step = Max((high - low) / (kPivots + 1), 1U);
    T sum[kPivots] = {};
    for (int32_t t = static_cast<int32_t>(threadIdx.x); t < vocab; t += kVerifyThreads) {
      const float own = p[t];
      if (!cut.Keeps(own, t)) continue;
      for (uint32_t j = 0; j < kPivots; ++j) {
        if (FloatBits(own) >= low + (j + 1) * step) sum[j] += amount(own);
      }
    }
    const uint32_t base = low;
    const uint32_t end = high;
    bool passed = false;
    for (uint32_t j = 0; j < kPivots; ++j) {
      const T reached = BlockReduce<kVerifyThreads>(sum[j], T{}, AddOp{});
      const uint32_t pivot = base + (j + 1) * step;
      if (passed || pivot >= end) continue;
      if (reached >= needed) {
        low = pivot;
      } else {
        high = pivot;
        above = reached;
        passed = true;
      }
    }
  }
  return {low, above};
}

// Keeps the entries above `bits` and the first `count` of those equal to it. REQUIRES: count >= 1.
__device__ inline Cut CutTies(const float* p, int32_t vocab, const Cut& cut, uint32_t bits,
                              int32_t count) {
  const auto one = [](float) { return 1; };
  const auto ties_before = [&](int32_t end) {
    return SumKept<int32_t>(p, vocab, cut, one, [&](float own, int32_t t) {
      return FloatBits(own) == bits && t < end;
    });
  };
  if (count >= ties_before(vocab)) return {bits, bits == cut.bits ? cut.end : vocab};
  int32_t low = 0;       // fewer than `count` ties before it
  int32_t high = vocab;  // more
  while (high > low + 1) {
    const int32_t middle = low + (high - low) / 2;
    if (ties_before(middle) >= count) {
      high = middle;
    } else {
      low = middle;
    }
  }
  return {bits, high};
}

// Zeroes what min-p, top-k and top-p exclude and renormalises. `most` is the largest of p.
__device__ inline void Truncate(const SlotSampling& sampling, float most, int32_t vocab, float* p) {
  const auto one = [](float) { return 1; };
  const auto mass_of = [](float own) { return static_cast<double>(own); };
  const auto any = [](float, int32_t) { return true; };
  const float least = sampling.min_p > 0.0F ? sampling.min_p * most : 0.0F;
  Cut cut{FloatBits(least), vocab};
  if (sampling.top_k > 0 && sampling.top_k < SumKept<int32_t>(p, vocab, cut, one, any)) {
    const Level<int32_t> level = FindLevel<int32_t>(p, vocab, cut, most, sampling.top_k, one);
    cut = CutTies(p, vocab, cut, level.bits, sampling.top_k - level.above);
  }
  double mass = SumKept<double>(p, vocab, cut, mass_of, any);
  if (sampling.top_p < 1.0F) {
    const double needed = static_cast<double>(sampling.top_p) * mass;
    const Level<double> level = FindLevel<double>(p, vocab, cut, most, needed, mass_of);
    // Of equal entries as many as the rest takes; at least the one that reaches it.
    const double rest = (needed - level.above) / static_cast<double>(BitsFloat(level.bits));
    const int32_t ties =
        static_cast<int32_t>(fmin(fmax(ceil(rest), 1.0), static_cast<double>(vocab)));
    cut = CutTies(p, vocab, cut, level.bits, ties);
    mass = SumKept<double>(p, vocab, cut, mass_of, any);
  }
  const float scale = static_cast<float>(1.0 / mass);
  for (int32_t t = static_cast<int32_t>(threadIdx.x); t < vocab; t += kVerifyThreads) {
    p[t] = cut.Keeps(p[t], t) ? p[t] * scale : 0.0F;
  }
  __syncthreads();
}

// p = the distribution of the ruled logits. `ruled` may be p.
__device__ inline void TargetDistribution(const SlotSampling& sampling, const float* ruled,
                                          int32_t vocab, float* p) {
  const float most = BlockSoftmax<kVerifyThreads>(ruled, 1.0F / sampling.temperature, vocab, p);
  if (sampling.min_p > 0.0F || sampling.top_k > 0 || sampling.top_p < 1.0F) {
    Truncate(sampling, most, vocab, p);
  }
}

// Raw log-probabilities of `token` and of the `num_top` best ones.
__device__ inline void RecordLogprobs(const float* logits, int32_t vocab, int32_t token,
                                      int32_t num_top, LogprobRecord* record) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const auto logit_at = [&](int32_t t) { return logits[t]; };
  const Ranked best = BlockArgMax<kVerifyThreads>(logit_at, vocab);
  const float own = logits[token];
  // The best token's share of the sum is 1, which would swallow the rest of a sure distribution.
  float rest = 0.0F;
  int32_t larger = 0;
  for (int32_t t = thread; t < vocab; t += kVerifyThreads) {
    if (t != best.index) rest += expf(logits[t] - best.value);
    larger += logits[t] > own ? 1 : 0;
  }
  rest = BlockSum<kVerifyThreads>(rest);
  larger = BlockReduce<kVerifyThreads>(larger, 0, AddOp{});
  const double log_sum = log1p(static_cast<double>(rest));
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - static_cast<double>(best.value) -
                              log_sum);
  };
  const int32_t wanted = Min(Min(num_top, vocab), kMaxLogprobs);
  Ranked entry = best;
  for (int32_t i = 0; i < wanted; ++i) {
    if (i > 0) {
      const Ranked before = entry;
      Ranked next = LastRanked();
      for (int32_t t = thread; t < vocab; t += kVerifyThreads) {
        const Ranked candidate{logits[t], t};
        if (Before(before, candidate) && Before(candidate, next)) next = candidate;
      }
      entry = BlockFirst<kVerifyThreads>(next);
    }
    if (thread != 0) continue;
    record->top_token[i] = entry.index;
    record->top_logprob[i] = logprob(entry.value);
  }
  if (thread != 0) return;
  record->token = token;
  record->logprob = logprob(own);
  record->rank = 1 + larger;
  record->num_top = Max(wanted, 0);
}

}  // namespace firesteel
