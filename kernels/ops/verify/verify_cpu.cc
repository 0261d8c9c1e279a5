#include "kernels/ops/verify/verify.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/ops/verify/sampling_math.h"
#include "kernels/ops/verify/sequence_result.h"

namespace firesteel {
namespace {

struct Scratch {
  float* p;        // [vocab] target distribution
  float* residual; // [vocab]
  int32_t* order;  // [vocab]
};

// Keeps the smallest set of most likely tokens whose mass reaches top_p (ties to the lower token).
void KeepNucleus(float* p, int32_t vocab, float top_p, int32_t* order) {
  for (int32_t i = 0; i < vocab; ++i) order[i] = i;
  std::sort(order, order + vocab,
            [&](int32_t x, int32_t y) { return p[x] != p[y] ? p[x] > p[y] : x < y; });
  double mass = 0.0;
  int32_t kept = 0;
  while (kept < vocab && mass < static_cast<double>(top_p)) {
    mass += static_cast<double>(p[order[kept++]]);
  }
  for (int32_t i = kept; i < vocab; ++i) p[order[i]] = 0.0F;
  ScaleRow(p, static_cast<float>(1.0 / mass), nullptr, vocab, p);
}

void TargetDistribution(const float* logits, int32_t vocab, float temperature, float top_p,
                        const Scratch& s) {
  ScaleRow(logits, 1.0F / temperature, nullptr, vocab, s.p);
  const float top = s.p[ArgMax(s.p, vocab)];
  const float sum = ExpShifted(s.p, vocab, top);
  ScaleRow(s.p, 1.0F / sum, nullptr, vocab, s.p);
  if (top_p < 1.0F) KeepNucleus(s.p, vocab, top_p, s.order);
}

// Token for row i of a sampled slot; sets *accepted when it is the draft itself.
int32_t SampleRow(const VerifyArgs& a, int32_t slot, const float* logits, int32_t draft_index,
                  int32_t draft, int64_t position, const Scratch& s, bool* accepted) {
  const int32_t vocab = a.slots.vocab;
  const uint64_t seed = a.slots.seed[slot];
  TargetDistribution(logits, vocab, a.slots.temperature[slot], a.slots.top_p[slot], s);
  *accepted = false;
  if (draft < 0) return DrawIndex(s.p, vocab, seed, position, DrawPurpose::kTarget);
  const float* q = a.slots.draft_probs +
                   (int64_t{slot} * a.slots.draft_length + draft_index) * vocab;
  if (DrawUniform(seed, position, DrawPurpose::kAccept) * q[draft] < s.p[draft]) {
    *accepted = true;
    return draft;
  }
  bool any = false;
  for (int32_t t = 0; t < vocab; ++t) {
    s.residual[t] = std::max(s.p[t] - q[t], 0.0F);
    any = any || s.residual[t] > 0.0F;
  }
  // p == q up to rounding leaves nothing: a rejection then has probability 0 in exact arithmetic, so p is right.
  return DrawIndex(any ? s.residual : s.p, vocab, seed, position, DrawPurpose::kTarget);
}

void VerifySequence(const VerifyArgs& a, int32_t index, const Scratch& s) {
  const int32_t slot = a.sequences.slot[index];
  const int32_t start = a.sequences.start[index];
  const int32_t rows = a.sequences.num_logit_rows[index];
  SequenceResult& result = a.results[index];
  result = SequenceResult{};
  result.slot = slot;
  if (rows == 0) {
    a.slots.length[slot] = start + a.sequences.num_rows[index];
    return;
  }
  const int32_t drafts = std::max(a.sequences.num_drafts[index], 0);
  const int32_t first_position = start + a.sequences.num_rows[index] - rows;
  const int32_t* draft = a.slots.draft_tokens + int64_t{slot} * a.slots.draft_length;
  const bool greedy = a.slots.temperature[slot] == 0.0F;
  result.drafted = drafts;
  for (int32_t i = 0; i < rows; ++i) {
    const float* logits =
        a.logits + (int64_t{a.sequences.first_logit_row[index]} + i) * a.slots.vocab;
    const int32_t candidate = i < drafts ? draft[i] : -1;
    bool accepted = false;
    int32_t token;
    if (greedy) {
      token = ArgMax(logits, a.slots.vocab);
      accepted = token == candidate;
    } else {
      token = SampleRow(a, slot, logits, i, candidate, first_position + i + 1, s, &accepted);
    }
    result.tokens[result.num_tokens++] = token;
    if (!accepted) break;
    ++result.accepted;
  }
  a.slots.length[slot] = first_position + result.num_tokens;
  a.slots.last_token[slot] = result.tokens[result.num_tokens - 1];
}

}  // namespace

void VerifyCpu(Stream& stream, const VerifyArgs& a) {
  const int32_t live = Min(*a.live_sequences, a.padded_sequences);
  PoolOf(stream).Run(live, 1, [&](int64_t begin, int64_t end, WorkerScratch& w) {
    Scratch s;
    s.p = w.Floats(a.slots.vocab);
    s.residual = w.Floats(a.slots.vocab);
    s.order = reinterpret_cast<int32_t*>(w.Floats(a.slots.vocab));
    for (int64_t i = begin; i < end; ++i) VerifySequence(a, static_cast<int32_t>(i), s);
  });
  for (int32_t i = live; i < a.padded_sequences; ++i) {
    a.results[i] = SequenceResult{};
    a.results[i].slot = -1;
  }
}

}  // namespace firesteel
