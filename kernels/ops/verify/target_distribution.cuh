// What the target samples from, by a cluster of blocks: the device form of target_distribution.h, with the same rules in the
// same order and the same ties. All threads of the cluster must call these functions; what they write is visible to all
// of them when they return.
//
// A cut needs no sorted row: it is the value of the last entry that is kept and the first token whose equal entry is not.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/core/float_codec.h"
#include "kernels/core/math.h"
#include "kernels/cuda/row_cluster.cuh"
#include "kernels/cuda/row_sampling.cuh"
#include "kernels/ops/step_meta.h"
#include "kernels/ops/verify/sequence_result.h"

namespace firesteel {

__device__ inline float MaskedLogit() { return BitsFloat(0xff800000U); }  // -infinity

// A thread per bad word; words that end alike write the same value.
__device__ inline void MaskBadWords(const RowCluster& cluster, const SlotTables& slots,
                                    int32_t slot, int32_t position, float* ruled) {
  const SamplingRules& rules = slots.rules[slot];
  const int32_t* recent = slots.recent_tokens + int64_t{slot} * kRecentTokens;
  const int32_t words = slots.sampling[slot].num_bad_words;
  for (int32_t w = cluster.thread(); w < words; w += RowCluster::kThreads) {
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
__device__ inline void AddBias(const RowCluster& cluster, const SamplingRules& rules, int32_t count,
                               float* ruled) {
  for (int32_t i = cluster.thread(); i < count; i += RowCluster::kThreads) {
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

__device__ inline float PenalisedLogit(const SlotSampling& sampling, float logit, int32_t count) {
  // Extreme penalties must leave finite values, or the softmax has no answer.
  constexpr float kLargest = 1e30F;
  if (sampling.repetition_penalty != 1.0F) {
    logit =
        logit > 0.0F ? logit / sampling.repetition_penalty : logit * sampling.repetition_penalty;
  }
  if (count > 0) {
    logit -= sampling.frequency_penalty * static_cast<float>(count);
    logit -= sampling.presence_penalty;
  }
  if (logit > kLargest) logit = kLargest;  // neither holds for NaN
  if (logit < -kLargest) logit = -kLargest;
  return logit;
}

__device__ inline void ApplyPenalties(const RowCluster& cluster, const SlotTables& slots,
                                      int32_t slot, float* ruled) {
  const SlotSampling& sampling = slots.sampling[slot];
  const uint8_t* seen = slots.prompt_seen + int64_t{slot} * slots.vocab;
  const int32_t* count = slots.output_count + int64_t{slot} * slots.vocab;
  cluster.ForEntries(ruled, slots.vocab, [&](int32_t t, float logit) {
    if ((seen[t] == 0 && count[t] == 0) || logit == MaskedLogit()) return;
    ruled[t] = PenalisedLogit(sampling, logit, count[t]);
  });
}

__device__ inline void ApplyRules(const RowCluster& cluster, const SlotTables& slots, int32_t slot,
                                  int32_t position, const float* logits, float* ruled) {
  const SlotSampling& sampling = slots.sampling[slot];
  const SamplingRules& rules = slots.rules[slot];
  cluster.ForEntries(logits, slots.vocab, [&](int32_t t, float logit) { ruled[t] = logit; });
  cluster.Sync();
  MaskBadWords(cluster, slots, slot, position, ruled);
  if (position + 1 - sampling.prompt_length < sampling.min_tokens) {
    for (int32_t i = cluster.thread(); i < sampling.num_stops; i += RowCluster::kThreads) {
      ruled[rules.stop[i]] = MaskedLogit();
    }
  }
  cluster.Sync();
  AddBias(cluster, rules, sampling.num_bias, ruled);
  cluster.Sync();
  if (!sampling.counts_tokens()) return;
  ApplyPenalties(cluster, slots, slot, ruled);
  cluster.Sync();
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
__device__ T SumKept(RowCluster& cluster, const float* p, int32_t vocab, const Cut& cut,
                     Amount amount, Wanted wanted) {
  T sum = T{};
  cluster.ForEntries(p, vocab, [&](int32_t t, float own) {
    if (cut.Keeps(own, t) && wanted(own, t)) sum += amount(own);
  });
  return cluster.Reduce(sum, AddOp{});
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
__device__ Level<T> FindLevel(RowCluster& cluster, const float* p, int32_t vocab, const Cut& cut,
                              float most, T needed, Amount amount) {
  constexpr uint32_t kPivots = 3;
  uint32_t low = cut.bits;              // entries from here on reach it
  uint32_t high = FloatBits(most) + 1;  // entries from here on do not
  T above = T{};
  while (high > low + 1) {
    const uint32_t step = Max((high - low) / (kPivots + 1), 1U);
    T sum[kPivots] = {};
    cluster.ForEntries(p, vocab, [&](int32_t t, float own) {
      if (FloatBits(own) < low + step || !cut.Keeps(own, t)) return;
#pragma unroll
      for (uint32_t j = 0; j < kPivots; ++j) {
        if (FloatBits(own) >= low + (j + 1) * step) sum[j] += amount(own);
      }
    });
    cluster.Reduce(sum, AddOp{});
    const uint32_t base = low;
    const uint32_t end = high;
    bool passed = false;
#pragma unroll
    for (uint32_t j = 0; j < kPivots; ++j) {
      const uint32_t pivot = base + (j + 1) * step;
      if (passed || pivot >= end) continue;
      if (sum[j] >= needed) {
        low = pivot;
      } else {
        high = pivot;
        above = sum[j];
        passed = true;
      }
    }
  }
  return {low, above};
}

// Keeps the entries above `bits` and the first `count` of those equal to it. REQUIRES: count >= 1.
__device__ inline Cut CutTies(RowCluster& cluster, const float* p, int32_t vocab, const Cut& cut,
                              uint32_t bits, int32_t count) {
  const auto one = [](float) { return 1; };
  const auto ties_before = [&](int32_t end) {
    return SumKept<int32_t>(cluster, p, vocab, cut, one, [&](float own, int32_t t) {
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
__device__ inline void Truncate(RowCluster& cluster, const SlotSampling& sampling, float most,
                                int32_t vocab, float* p) {
  const auto one = [](float) { return 1; };
  const auto mass_of = [](float own) { return static_cast<double>(own); };
  const auto any = [](float, int32_t) { return true; };
  const float least = sampling.min_p > 0.0F ? sampling.min_p * most : 0.0F;
  Cut cut{FloatBits(least), vocab};
  if (sampling.top_k > 0 && sampling.top_k < SumKept<int32_t>(cluster, p, vocab, cut, one, any)) {
    const Level<int32_t> level =
        FindLevel<int32_t>(cluster, p, vocab, cut, most, sampling.top_k, one);
    cut = CutTies(cluster, p, vocab, cut, level.bits, sampling.top_k - level.above);
  }
  double mass = SumKept<double>(cluster, p, vocab, cut, mass_of, any);
  if (sampling.top_p < 1.0F) {
    const double needed = static_cast<double>(sampling.top_p) * mass;
    const Level<double> level = FindLevel<double>(cluster, p, vocab, cut, most, needed, mass_of);
    // Of equal entries as many as the rest takes; at least the one that reaches it.
    const double rest = (needed - level.above) / static_cast<double>(BitsFloat(level.bits));
    const int32_t ties =
        static_cast<int32_t>(fmin(fmax(ceil(rest), 1.0), static_cast<double>(vocab)));
    cut = CutTies(cluster, p, vocab, cut, level.bits, ties);
    mass = SumKept<double>(cluster, p, vocab, cut, mass_of, any);
  }
  const float scale = static_cast<float>(1.0 / mass);
  cluster.ForEntries(p, vocab,
                     [&](int32_t t, float own) { p[t] = cut.Keeps(own, t) ? own * scale : 0.0F; });
}

// p = the distribution of the ruled logits. `ruled` may be p.
__device__ inline void TargetDistribution(RowCluster& cluster, const SlotSampling& sampling,
                                          const float* ruled, int32_t vocab, float* p) {
  const float most = ClusterSoftmax(cluster, ruled, 1.0F / sampling.temperature, vocab, p);
  if (sampling.min_p > 0.0F || sampling.top_k > 0 || sampling.top_p < 1.0F) {
    Truncate(cluster, sampling, most, vocab, p);
  }
  cluster.Sync();
}

// Raw log-probabilities of `token` and of the `num_top` best ones.
__device__ inline void RecordLogprobs(RowCluster& cluster, const float* logits, int32_t vocab,
                                      int32_t token, int32_t num_top, LogprobRecord* record) {
  const Ranked best = ClusterArgMax(cluster, logits, vocab);
  const float own = logits[token];
  // The best token's share of the sum is 1, which would swallow the rest of a sure distribution.
  float rest = 0.0F;
  int32_t larger = 0;
  cluster.ForEntries(logits, vocab, [&](int32_t t, float logit) {
    if (t != best.index) rest += expf(logit - best.value);
    larger += logit > own ? 1 : 0;
  });
  rest = cluster.Reduce(rest, AddOp{});
  larger = cluster.Reduce(larger, AddOp{});
  const double log_sum = log1p(static_cast<double>(rest));
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - static_cast<double>(best.value) -
                              log_sum);
  };
  const int32_t wanted = Min(Min(num_top, vocab), kMaxLogprobs);
  Ranked entry = best;
  for (int32_t i = 0; i < wanted; ++i) {
    if (i > 0) {
      Ranked next = LastRanked();
      cluster.ForEntries(logits, vocab, [&](int32_t t, float logit) {
        const Ranked candidate{logit, t};
        if (Before(entry, candidate)) next = FirstOp{}(next, candidate);
      });
      entry = cluster.Reduce(next, FirstOp{});
    }
    if (!cluster.IsFirst()) continue;
    record->top_token[i] = entry.index;
    record->top_logprob[i] = logprob(entry.value);
  }
  if (!cluster.IsFirst()) return;
  record->token = token;
  record->logprob = logprob(own);
  record->rank = 1 + larger;
  record->num_top = Max(wanted, 0);
}

}  // namespace firesteel
