#include "kernels/ops/markov/markov.h"

#include "kernels/core/float_codec.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/gemm_rows.h"
#include "kernels/cpu/row_access.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/ops/verify/sampling_math.h"

namespace firesteel {
namespace {

int32_t Predecessor(const DraftMeta& draft, int64_t sequence, int32_t block, int32_t step) {
  return draft.chain[sequence * (block + 1) + step];
}

void BiasedLogits(Stream& stream, const MarkovStepArgs& a, int64_t live) {
  const int64_t vocab = a.w2.out;
  PoolOf(stream).Run(
      vocab, GemmGrain(a.w2, live), [&](int64_t begin, int64_t end, WorkerScratch& s) {
        const auto** x = reinterpret_cast<const float**>(s.Bytes(live * 8));
        auto** y = reinterpret_cast<float**>(s.Bytes(live * 8));
        float* embedding = s.Floats(live * a.w2.in);
        for (int64_t i = 0; i < live; ++i) {
          const uint16_t* row = a.w1 + int64_t{Predecessor(a.draft, i, a.block, a.step)} * a.w2.in;
          for (int32_t c = 0; c < a.w2.in; ++c) embedding[i * a.w2.in + c] = Bf16ToFloat(row[c]);
          x[i] = embedding + i * a.w2.in;
          y[i] = a.logits + i * vocab;
        }
        GemmRows(a.w2, x, y, live, begin, end, s);
        for (int64_t i = 0; i < live; ++i) {
          AddScaled(1.0F, a.base + (i * a.block + a.step) * vocab + begin, end - begin,
                    y[i] + begin);
        }
      });
}

void Choose(const MarkovStepArgs& a, int64_t i) {
  const int32_t vocab = a.w2.out;
  const int32_t slot = a.draft.slot[i];
  float* logits = a.logits + i * vocab;
  const float temperature = a.slots.sampling[slot].temperature;
  int32_t token;
  if (temperature == 0.0F) {
    token = ArgMax(logits, vocab);
  } else {
    float* q = a.slots.draft_probs + (int64_t{slot} * a.slots.draft_length + a.step) * vocab;
    ScaleRow(logits, 1.0F / temperature, nullptr, vocab, q);
    const float top = q[ArgMax(q, vocab)];
    const float sum = ExpShifted(q, vocab, top);
    ScaleRow(q, 1.0F / sum, nullptr, vocab, q);
    const int64_t position = int64_t{a.draft.position[i * a.block + a.step]} + 1;
    token = DrawIndex(q, vocab, a.slots.sampling[slot].seed, position, DrawPurpose::kDraft);
  }
  a.draft.chain[i * (a.block + 1) + a.step + 1] = token;
  a.slots.draft_tokens[int64_t{slot} * a.slots.draft_length + a.step] = token;
}

}  // namespace

void MarkovStepCpu(Stream& stream, const MarkovStepArgs& a) {
  const int64_t live = Min(*a.live_sequences, a.padded_sequences);
  if (live == 0) return;
  BiasedLogits(stream, a, live);
  PoolOf(stream).Run(live, 1, [&](int64_t begin, int64_t end, WorkerScratch&) {
    for (int64_t i = begin; i < end; ++i) Choose(a, i);
  });
}

void ConfidenceCpu(Stream& stream, const ConfidenceArgs& a) {
  PoolOf(stream).Run(
      Min(*a.live_sequences, a.padded_sequences), 4,
      [&](int64_t begin, int64_t end, WorkerScratch& s) {
        const int32_t width = a.hidden_size + a.rank;
        float* weight = s.Floats(width);
        float* embedding = s.Floats(a.rank);
        float* buffer = s.Floats(a.hidden_size);
        for (int32_t c = 0; c < width; ++c) weight[c] = Bf16ToFloat(a.weight[c]);
        for (int64_t i = begin; i < end; ++i) {
          for (int32_t k = 0; k < a.steps; ++k) {
            const uint16_t* row = a.w1 + int64_t{Predecessor(a.draft, i, a.block, k)} * a.rank;
            for (int32_t c = 0; c < a.rank; ++c) embedding[c] = Bf16ToFloat(row[c]);
            const float* hidden = ReadRow(a.hidden, i * a.block + k, a.hidden_size, buffer);
            a.logit[i * a.steps + k] =
                Dot(weight, hidden, a.hidden_size) + Dot(weight + a.hidden_size, embedding, a.rank);
          }
        }
      });
}

}  // namespace firesteel
