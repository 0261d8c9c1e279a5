#include "kernels/ops/verify/verify.h"

#include <algorithm>

#include "kernels/core/float_codec.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/ops/verify/sampling_math.h"
#include "kernels/ops/verify/sequence_result.h"
#include "kernels/ops/verify/target_distribution.h"

namespace firesteel {
namespace {

// Row i of the judged ones of a sequence, at an absolute position.
struct JudgedRow {
  int32_t slot;
  int32_t position;
  const float* logits;
  int32_t draft_index;
  int32_t draft;  // -1: none left to judge
};

// A broken checkpoint or an overflow shows up here; every token chosen from such a row would be arbitrary.
bool AllFinite(const float* x, int32_t count) {
  uint32_t bad = 0;
  for (int32_t i = 0; i < count; ++i) {
    bad |= (FloatBits(x[i]) & 0x7f800000U) == 0x7f800000U ? 1U : 0U;
  }
  return bad == 0;
}

// Token for a row of a sampled slot; sets *accepted when it is the draft itself.
int32_t SampleRow(const VerifyArgs& a, const JudgedRow& row, const float* ruled,
                  const RowScratch& s, bool* accepted) {
  const int32_t vocab = a.slots.vocab;
  const SlotSampling& sampling = a.slots.sampling[row.slot];
  const int64_t position = int64_t{row.position} + 1;  // of the token that is chosen
  TargetDistribution(sampling, ruled, vocab, s);
  if (row.draft < 0) return DrawIndex(s.p, vocab, sampling.seed, position, DrawPurpose::kTarget);
  const float* q =
      a.slots.draft_probs + (int64_t{row.slot} * a.slots.draft_length + row.draft_index) * vocab;
  const float u = DrawUniform(sampling.seed, position, DrawPurpose::kAccept);
  if (u * q[row.draft] < s.p[row.draft]) {
    *accepted = true;
    return row.draft;
  }
  bool any = false;
  for (int32_t t = 0; t < vocab; ++t) {
    s.residual[t] = std::max(s.p[t] - q[t], 0.0F);
    any = any || s.residual[t] > 0.0F;
  }
  // p == q up to rounding leaves nothing: a rejection then has probability 0 in exact arithmetic, so p is right.
  return DrawIndex(any ? s.residual : s.p, vocab, sampling.seed, position, DrawPurpose::kTarget);
}

int32_t JudgeRow(const VerifyArgs& a, const JudgedRow& row, const RowScratch& s, bool* accepted) {
  const SlotSampling& sampling = a.slots.sampling[row.slot];
  const float* ruled = row.logits;
  if (sampling.has_rules()) {
    ApplyRules(a.slots, row.slot, row.position, row.logits, s.p);
    ruled = s.p;
  }
  *accepted = false;
  if (sampling.temperature != 0.0F) return SampleRow(a, row, ruled, s, accepted);
  const int32_t token = ArgMax(ruled, a.slots.vocab);
  *accepted = token == row.draft;
  return token;
}

void VerifySequence(const VerifyArgs& a, int32_t index, const RowScratch& s) {
  const int32_t slot = a.sequences.slot[index];
  const int32_t num_rows = a.sequences.num_rows[index];
  const int32_t end = a.sequences.start[index] + num_rows;
  const int32_t logit_rows = a.sequences.num_logit_rows[index];
  const int32_t first_logit_row = a.sequences.first_logit_row[index];
  const int32_t drafts = std::max(a.sequences.num_drafts[index], 0);
  const int32_t next_token = a.sequences.next_token[index];
  const int32_t judged = logit_rows == 0 || next_token >= 0 ? 0 : drafts + 1;
  const SlotSampling& sampling = a.slots.sampling[slot];
  SequenceResult& result = a.results[index];
  result = SequenceResult{};
  result.slot = slot;
  const auto logits = [&](int32_t i) {
    return a.logits + (int64_t{first_logit_row} + i) * a.slots.vocab;
  };
  const int32_t first_row = a.sequences.first_row[index] + num_rows - logit_rows;
  for (int32_t i = 0; i < logit_rows - judged; ++i) {
    const int32_t known = i + 1 < logit_rows ? a.row_token[first_row + i + 1] : next_token;
    RecordLogprobs(logits(i), a.slots.vocab, known, sampling.prompt_logprobs, s.residual,
                   &a.logprobs[first_logit_row + i]);
  }
  if (judged == 0) {
    a.slots.length[slot] = end;
    return;
  }
  const int32_t first_judged = logit_rows - judged;
  const int32_t* draft = a.slots.draft_tokens + int64_t{slot} * a.slots.draft_length;
  result.drafted = drafts;
  for (int32_t i = 0; i < judged; ++i) {
    const JudgedRow row{slot, end - judged + i, logits(first_judged + i), i,
                        i < drafts ? draft[i] : -1};
    if (!AllFinite(row.logits, a.slots.vocab)) {
      result = SequenceResult{};
      result.slot = slot;
      result.not_finite = 1;
      return;
    }
    bool accepted;
    const int32_t token = JudgeRow(a, row, s, &accepted);
    if (sampling.logprobs >= 0) {
      RecordLogprobs(row.logits, a.slots.vocab, token, sampling.logprobs, s.residual,
                     &a.logprobs[first_logit_row + first_judged + i]);
    }
    if (sampling.counts_tokens()) ++a.slots.output_count[int64_t{slot} * a.slots.vocab + token];
    result.tokens[result.num_tokens++] = token;
    if (!accepted) break;
    ++result.accepted;
  }
  a.slots.length[slot] = end - judged + result.num_tokens;
  a.slots.last_token[slot] = result.tokens[result.num_tokens - 1];
}

}  // namespace

void VerifyCpu(Stream& stream, const VerifyArgs& a) {
  const int32_t live = Min(*a.live_sequences, a.padded_sequences);
  PoolOf(stream).Run(live, 1, [&](int64_t begin, int64_t end, WorkerScratch& w) {
    RowScratch s;
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
