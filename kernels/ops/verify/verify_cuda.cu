#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/row_cluster.cuh"
#include "kernels/cuda/row_sampling.cuh"
#include "kernels/ops/verify/sampling_math.h"
#include "kernels/ops/verify/sequence_result.h"
#include "kernels/ops/verify/target_distribution.cuh"
#include "kernels/ops/verify/verify.h"

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

struct Choice {
  int32_t token;
  bool accepted;  // it is the draft itself
};

// Index of the first of the row's best raw logits. A broken checkpoint or an overflow shows up here as a negative index:
// every token chosen from such a row would be arbitrary.
__device__ int32_t FirstIfFinite(RowCluster& cluster, const float* logits, int32_t vocab) {
  FirstSeen first;
  bool broken = false;
  cluster.ForEntries(logits, vocab, [&](int32_t t, float logit) {
    broken = broken || (FloatBits(logit) & 0x7f800000U) == 0x7f800000U;
    first.Take(logit, t);
  });
  if (broken) first.best = {BitsFloat(0x7f800000U), -1};  // before every entry
  return cluster.Reduce(first.best, FirstOp{}).index;
}

__device__ Choice SampleRow(RowCluster& cluster, const VerifyArgs& a, const JudgedRow& row,
                            const float* ruled, float* p) {
  const int32_t vocab = a.slots.vocab;
  const SlotSampling& sampling = a.slots.sampling[row.slot];
  const int64_t position = int64_t{row.position} + 1;  // of the token that is chosen
  TargetDistribution(cluster, sampling, ruled, vocab, p);
  int32_t token = -1;
  if (row.draft >= 0) {
    const float* q =
        a.slots.draft_probs + (int64_t{row.slot} * a.slots.draft_length + row.draft_index) * vocab;
    const float u = DrawUniform(sampling.seed, position, DrawPurpose::kAccept);
    if (u * q[row.draft] < p[row.draft]) return {row.draft, true};
    token = ClusterDraw<2>(cluster, {p, q}, vocab, sampling.seed, position, DrawPurpose::kTarget);
  }
  // p == q up to rounding leaves no residual: a rejection then has probability 0 in exact arithmetic, so p is right.
  if (token < 0) {
    token = ClusterDrawFrom(cluster, p, vocab, sampling.seed, position, DrawPurpose::kTarget);
  }
  return {token, false};
}

// `best` is the first of the best raw logits.
__device__ Choice JudgeRow(RowCluster& cluster, const VerifyArgs& a, const JudgedRow& row,
                           int32_t best, float* p) {
  const SlotSampling& sampling = a.slots.sampling[row.slot];
  const float* ruled = row.logits;
  if (sampling.has_rules()) {
    ApplyRules(cluster, a.slots, row.slot, row.position, row.logits, p);
    ruled = p;
  }
  if (sampling.temperature != 0.0F) return SampleRow(cluster, a, row, ruled, p);
  const int32_t token =
      sampling.has_rules() ? ClusterArgMax(cluster, ruled, a.slots.vocab).index : best;
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

__device__ void ScoreKnownRows(RowCluster& cluster, const VerifyArgs& a, int32_t index,
                               const SequenceRows& rows) {
  const int32_t first_row =
      a.sequences.first_row[index] + a.sequences.num_rows[index] - rows.logit_rows;
  const int32_t num_top = a.slots.sampling[rows.slot].prompt_logprobs;
  for (int32_t i = 0; i < rows.logit_rows - rows.judged; ++i) {
    const int32_t known =
        i + 1 < rows.logit_rows ? a.row_token[first_row + i + 1] : a.sequences.next_token[index];
    const int64_t logit_row = int64_t{rows.first_logit_row} + i;
    RecordLogprobs(cluster, LogitsOf(a, logit_row), a.slots.vocab, known, num_top,
                   &a.logprobs[logit_row]);
  }
}

// The record is the business of the first thread; every thread knows what was emitted.
__device__ void JudgeRows(RowCluster& cluster, const VerifyArgs& a, int32_t index,
                          const SequenceRows& rows, const int32_t* best, float* p) {
  const bool writes = cluster.IsFirst();
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
    if (best[i] < 0) {
      if (!writes) return;
      result = SequenceResult{};
      result.slot = rows.slot;
      result.not_finite = 1;
      return;
    }
    const Choice choice = JudgeRow(cluster, a, row, best[i], p);
    if (sampling.logprobs >= 0) {
      RecordLogprobs(cluster, row.logits, a.slots.vocab, choice.token, sampling.logprobs,
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
    if (accepted && (sampling.has_rules() || sampling.temperature != 0.0F)) cluster.Sync();
    if (writes && accepted) ++result.accepted;
  }
  if (!writes) return;
  result.num_tokens = emitted;
  a.slots.length[rows.slot] = rows.end - rows.judged + emitted;
  a.slots.last_token[rows.slot] = last;
}

// Finds the best raw logit of all judged rows at once, before it is known which of them count. It passes them on in the tokens
// of the results. Grid: (blocks of a cluster, sequences, rows).
__global__ void __cluster_dims__(RowCluster::kBlocks, 1, 1)
    __launch_bounds__(RowCluster::kBlockThreads, 2) FindFirsts(VerifyArgs a) {
  const int32_t index = static_cast<int32_t>(blockIdx.y);
  if (index >= Min(*a.live_sequences, a.padded_sequences)) return;
  const SequenceRows rows = RowsOf(a, index);
  const int32_t i = static_cast<int32_t>(blockIdx.z);
  if (i >= rows.judged) return;
  RowCluster cluster;
  const int64_t logit_row = int64_t{rows.first_logit_row} + rows.logit_rows - rows.judged + i;
  const int32_t best = FirstIfFinite(cluster, LogitsOf(a, logit_row), a.slots.vocab);
  if (cluster.IsFirst()) a.results[index].tokens[i] = best;
}

// A cluster per sequence. Grid: (blocks of a cluster, sequences).
__global__ void __cluster_dims__(RowCluster::kBlocks, 1, 1)
    __launch_bounds__(RowCluster::kBlockThreads) VerifySequence(VerifyArgs a) {
  __shared__ int32_t best[kMaxDraftLength + 1];
  const int32_t index = static_cast<int32_t>(blockIdx.y);
  if (index >= Min(*a.live_sequences, a.padded_sequences)) {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    a.results[index] = SequenceResult{};
    a.results[index].slot = -1;
    return;
  }
  if (threadIdx.x <= kMaxDraftLength) best[threadIdx.x] = a.results[index].tokens[threadIdx.x];
  RowCluster cluster;  // every block has read the record before one writes it
  const SequenceRows rows = RowsOf(a, index);
  ScoreKnownRows(cluster, a, index, rows);
  JudgeRows(cluster, a, index, rows, best, a.scratch + int64_t{index} * a.slots.vocab);
}

}  // namespace

void VerifyCuda(Stream& stream, const VerifyArgs& a) {
  if (a.padded_sequences == 0) return;
  const auto sequences = static_cast<uint32_t>(a.padded_sequences);
  const auto rows = static_cast<uint32_t>(a.slots.draft_length) + 1;
  const cudaStream_t handle = CudaStreamOf(stream);
  FindFirsts<<<dim3(RowCluster::kBlocks, sequences, rows), RowCluster::kBlockThreads, 0, handle>>>(
      a);
  VerifySequence<<<dim3(RowCluster::kBlocks, sequences), RowCluster::kBlockThreads, 0, handle>>>(a);
}

}  // namespace firesteel
