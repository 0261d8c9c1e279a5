#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/row_sampling.cuh"
#include "kernels/ops/verify/sampling_math.h"
#include "kernels/ops/verify/sequence_result.h"
#include "kernels/ops/verify/target_distribution.cuh"
#include "kernels/ops/verify/verify.h"

namespace firesteel {
namespace {

// Blocks per sequence. All of them score the known tokens of a prompt chunk; the first one judges.
constexpr int32_t kBlocksPerSequence = 8;

// Row i of the judged ones of a sequence, at an absolute position.
struct JudgedRow {
  int32_t slot;
  int32_t position;
  const float* logits;
  int32_t draft_index;
  int32_t draft;  // -1: none left to judge
};

struct Choice {
  int32_t token;
  bool accepted;  // it is the draft itself
};

// A broken checkpoint or an overflow shows up here; every token chosen from such a row would be arbitrary.
__device__ bool AllFinite(const float* x, int32_t count) {
  int bad = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kVerifyThreads) {
    if ((FloatBits(x[i]) & 0x7f800000U) == 0x7f800000U) bad = 1;
  }
  return __syncthreads_or(bad) == 0;
}

__device__ Choice SampleRow(const VerifyArgs& a, const JudgedRow& row, const float* ruled,
                            float* p) {
  const int32_t vocab = a.slots.vocab;
  const SlotSampling& sampling = a.slots.sampling[row.slot];
  const int64_t position = int64_t{row.position} + 1;  // of the token that is chosen
  TargetDistribution(sampling, ruled, vocab, p);
  int32_t token = -1;
  if (row.draft >= 0) {
    const float* q =
        a.slots.draft_probs + (int64_t{row.slot} * a.slots.draft_length + row.draft_index) * vocab;
    const float u = DrawUniform(sampling.seed, position, DrawPurpose::kAccept);
    if (u * q[row.draft] < p[row.draft]) return {row.draft, true};
    token = BlockDraw<kVerifyThreads>([&](int32_t t) { return p[t] - q[t]; }, vocab, sampling.seed,
                                      position, DrawPurpose::kTarget);
  }
  // p == q up to rounding leaves no residual: a rejection then has probability 0 in exact arithmetic, so p is right.
  const auto weight = [&](int32_t t) { return p[t]; };
  if (token < 0) {
    token = BlockDraw<kVerifyThreads>(weight, vocab, sampling.seed, position, DrawPurpose::kTarget);
  }
  if (token < 0) token = BlockArgMax<kVerifyThreads>(weight, vocab).index;
  return {token, false};
}

__device__ Choice JudgeRow(const VerifyArgs& a, const JudgedRow& row, float* p) {
  const SlotSampling& sampling = a.slots.sampling[row.slot];
  const float* ruled = row.logits;
  if (sampling.has_rules()) {
    ApplyRules(a.slots, row.slot, row.position, row.logits, p);
    ruled = p;
  }
  if (sampling.temperature != 0.0F) return SampleRow(a, row, ruled, p);
  const auto logit = [&](int32_t t) { return ruled[t]; };
  const int32_t token = BlockArgMax<kVerifyThreads>(logit, a.slots.vocab).index;
  return {token, token == row.draft};
}

// The rows of a planned sequence that reach the LM head: known ones, then judged ones.
struct SequenceRows {
  int32_t slot;
  int32_t end;  // position behind the last row
  int32_t first_logit_row;
  int32_t logit_rows;
  int32_t drafts;
  int32_t judged;
};

__device__ SequenceRows RowsOf(const VerifyArgs& a, int32_t index) {
  const SequenceMeta& m = a.sequences;
  SequenceRows rows;
  rows.slot = m.slot[index];
  rows.end = m.start[index] + m.num_rows[index];
  rows.first_logit_row = m.first_logit_row[index];
  rows.logit_rows = m.num_logit_rows[index];
  rows.drafts = Max(m.num_drafts[index], 0);
  rows.judged = rows.logit_rows == 0 || m.next_token[index] >= 0 ? 0 : rows.drafts + 1;
  return rows;
}

__device__ const float* LogitsOf(const VerifyArgs& a, int64_t logit_row) {
  return a.logits + logit_row * a.slots.vocab;
}

// Row `first` and every kBlocksPerSequence-th one behind it.
__device__ void ScoreKnownRows(const VerifyArgs& a, int32_t index, const SequenceRows& rows,
                               int32_t first) {
  const int32_t first_row =
      a.sequences.first_row[index] + a.sequences.num_rows[index] - rows.logit_rows;
  const int32_t num_top = a.slots.sampling[rows.slot].prompt_logprobs;
  for (int32_t i = first; i < rows.logit_rows - rows.judged; i += kBlocksPerSequence) {
    const int32_t known =
        i + 1 < rows.logit_rows ? a.row_token[first_row + i + 1] : a.sequences.next_token[index];
    const int64_t logit_row = int64_t{rows.first_logit_row} + i;
    RecordLogprobs(LogitsOf(a, logit_row), a.slots.vocab, known, num_top, &a.logprobs[logit_row]);
  }
}

// The record is the business of thread 0; every thread knows what was emitted.
__device__ void JudgeRows(const VerifyArgs& a, int32_t index, const SequenceRows& rows, float* p) {
  const bool writes = threadIdx.x == 0;
  SequenceResult& result = a.results[index];
  if (writes) {
    result = SequenceResult{};
    result.slot = rows.slot;
    if (rows.judged > 0) result.drafted = rows.drafts;
  }
  if (rows.judged == 0) {
    if (writes) a.slots.length[rows.slot] = rows.end;
    return;
  }
  const SlotSampling& sampling = a.slots.sampling[rows.slot];
  const int64_t first_judged = int64_t{rows.first_logit_row} + rows.logit_rows - rows.judged;
  const int32_t* draft = a.slots.draft_tokens + int64_t{rows.slot} * a.slots.draft_length;
  int32_t emitted = 0;
  int32_t last = 0;
  for (bool accepted = true; accepted && emitted < rows.judged;) {
    const int32_t i = emitted;
    const int64_t logit_row = first_judged + i;
    const JudgedRow row{rows.slot, rows.end - rows.judged + i, LogitsOf(a, logit_row), i,
                        i < rows.drafts ? draft[i] : -1};
    if (!AllFinite(row.logits, a.slots.vocab)) {
      if (!writes) return;
      result = SequenceResult{};
      result.slot = rows.slot;
      result.not_finite = 1;
      return;
    }
    const Choice choice = JudgeRow(a, row, p);
    if (sampling.logprobs >= 0) {
      RecordLogprobs(row.logits, a.slots.vocab, choice.token, sampling.logprobs,
                     &a.logprobs[logit_row]);
    }
    if (writes) {
      if (sampling.counts_tokens()) {
        ++a.slots.output_count[int64_t{rows.slot} * a.slots.vocab + choice.token];
      }
      result.tokens[i] = choice.token;
    }
    accepted = choice.accepted;
    last = choice.token;
    ++emitted;
    // The next row's penalties see this token, and its distribution overwrites the one just drawn from.
    __syncthreads();
    if (writes && accepted) ++result.accepted;
  }
  if (!writes) return;
  result.num_tokens = emitted;
  a.slots.length[rows.slot] = rows.end - rows.judged + emitted;
  a.slots.last_token[rows.slot] = last;
}

__global__ void __launch_bounds__(kVerifyThreads) VerifySequence(VerifyArgs a) {
  const int32_t index = static_cast<int32_t>(blockIdx.x);
  const int32_t part = static_cast<int32_t>(blockIdx.y);
  if (index >= Min(*a.live_sequences, a.padded_sequences)) {
    if (part != 0 || threadIdx.x != 0) return;
    a.results[index] = SequenceResult{};
    a.results[index].slot = -1;
    return;
  }
  const SequenceRows rows = RowsOf(a, index);
  ScoreKnownRows(a, index, rows, part);
  if (part == 0) JudgeRows(a, index, rows, a.scratch + int64_t{index} * a.slots.vocab);
}

}  // namespace

void VerifyCuda(Stream& stream, const VerifyArgs& a) {
  if (a.padded_sequences == 0) return;
  const dim3 grid(static_cast<uint32_t>(a.padded_sequences), kBlocksPerSequence);
  VerifySequence<<<grid, kVerifyThreads, 0, CudaStreamOf(stream)>>>(a);
}

}  // namespace firesteel
