#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/row_access.cuh"
#include "kernels/cuda/row_sampling.cuh"
#include "kernels/cuda/weight_quad.cuh"
#include "kernels/ops/markov/markov.h"

namespace firesteel {
namespace {

constexpr int32_t kLogitWarps = 8;
constexpr int32_t kOutputsPerWarp = 4;
constexpr int32_t kOutputsPerBlock = kLogitWarps * kOutputsPerWarp;
constexpr int32_t kSequenceTile = 8;  // a weight row is decoded once for so many sequences
constexpr int32_t kChooseThreads = 1024;
constexpr int32_t kConfidenceThreads = 128;

// The embedding of the token before proposal `step` of a draft block.
__device__ const uint16_t* PredecessorRow(const DraftMeta& draft, const uint16_t* w1, int32_t rank,
                                          int64_t sequence, int32_t block, int32_t step) {
  return w1 + int64_t{draft.chain[sequence * (block + 1) + step]} * rank;
}

// A warp per output and sequence: lane l adds the quads l, l + 32, ... of a row, then the lanes are added in one tree.
__global__ void __launch_bounds__(kLogitWarps* kWarpSize) BiasedLogits(MarkovStepArgs a) {
  const int32_t live = Min(*a.live_sequences, a.padded_sequences);
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpSize;
  const int64_t vocab = a.w2.out;
  const int64_t begin = int64_t{blockIdx.x} * kOutputsPerBlock +
                        static_cast<int32_t>(threadIdx.x) / kWarpSize * kOutputsPerWarp;
  const int64_t end = Min(begin + kOutputsPerWarp, vocab);
  for (int32_t tile = 0; tile < live; tile += kSequenceTile) {
    const int32_t rows = Min(kSequenceTile, live - tile);
    const uint16_t* x[kSequenceTile];
#pragma unroll
    for (int32_t r = 0; r < kSequenceTile; ++r) {
      // Rows past the live ones are never read; they only need some address.
      x[r] = PredecessorRow(a.draft, a.w1, a.w2.in, tile + Min(r, rows - 1), a.block, a.step);
    }
    for (int64_t o = begin; o < end; ++o) {
      float sum[kSequenceTile] = {};
      for (int32_t k = 4 * lane; k < a.w2.in; k += 4 * kWarpSize) {
        float w[4];
        DecodeQuad(a.w2, o, k, w);
#pragma unroll
        for (int32_t r = 0; r < kSequenceTile; ++r) {
          if (r >= rows) break;
          float v[4];
          LoadBf16Quad(x[r] + k, a.w2.in - k, v);
          for (int32_t j = 0; j < 4; ++j) sum[r] = fmaf(w[j], v[j], sum[r]);
        }
      }
#pragma unroll
      for (int32_t r = 0; r < kSequenceTile; ++r) {
        if (r >= rows) break;
        const float bias = WarpReduce(sum[r], AddOp{});
        const int64_t i = tile + r;
        if (lane == 0) {
          a.logits[i * vocab + o] = a.base[(i * a.block + a.step) * vocab + o] + bias;
        }
      }
    }
  }
}

// A block per draft sequence.
__global__ void __launch_bounds__(kChooseThreads) ChooseToken(MarkovStepArgs a) {
  const int64_t i = blockIdx.x;
  if (i >= Min(*a.live_sequences, a.padded_sequences)) return;
  const int32_t vocab = a.w2.out;
  const int32_t slot = a.draft.slot[i];
  const float* logits = a.logits + i * vocab;
  const float temperature = a.slots.sampling[slot].temperature;
  int32_t token;
  if (temperature == 0.0F) {
    token = BlockArgMax<kChooseThreads>([&](int32_t t) { return logits[t]; }, vocab).index;
  } else {
    float* q = a.slots.draft_probs + (int64_t{slot} * a.slots.draft_length + a.step) * vocab;
    BlockSoftmax<kChooseThreads>(logits, 1.0F / temperature, vocab, q);
    const int64_t position = int64_t{a.draft.position[i * a.block + a.step]} + 1;
    const auto weight = [&](int32_t t) { return q[t]; };
    token = BlockDraw<kChooseThreads>(weight, vocab, a.slots.sampling[slot].seed, position,
                                      DrawPurpose::kDraft);
    if (token < 0) token = BlockArgMax<kChooseThreads>(weight, vocab).index;
  }
  if (threadIdx.x != 0) return;
  a.draft.chain[i * (a.block + 1) + a.step + 1] = token;
  a.slots.draft_tokens[int64_t{slot} * a.slots.draft_length + a.step] = token;
}

// A block per draft sequence and step.
__global__ void __launch_bounds__(kConfidenceThreads) ScoreProposal(ConfidenceArgs a) {
  const int64_t i = blockIdx.x;
  if (i >= Min(*a.live_sequences, a.padded_sequences)) return;
  const int32_t k = static_cast<int32_t>(blockIdx.y);
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  float hidden = 0.0F;
  for (int32_t c = thread; c < a.hidden_size; c += kConfidenceThreads) {
    hidden += Bf16ToFloat(a.weight[c]) * LoadElement(a.hidden, i * a.block + k, c);
  }
  const uint16_t* row = PredecessorRow(a.draft, a.w1, a.rank, i, a.block, k);
  float embedding = 0.0F;
  for (int32_t c = thread; c < a.rank; c += kConfidenceThreads) {
    embedding += Bf16ToFloat(a.weight[a.hidden_size + c]) * Bf16ToFloat(row[c]);
  }
  hidden = BlockSum<kConfidenceThreads>(hidden);
  embedding = BlockSum<kConfidenceThreads>(embedding);
  if (thread == 0) a.logit[i * a.steps + k] = hidden + embedding;
}

}  // namespace

void MarkovStepCuda(Stream& stream, const MarkovStepArgs& a) {
  if (a.padded_sequences == 0) return;
  const cudaStream_t handle = CudaStreamOf(stream);
  const uint32_t tiles = static_cast<uint32_t>(CeilDiv(a.w2.out, kOutputsPerBlock));
  BiasedLogits<<<tiles, kLogitWarps * kWarpSize, 0, handle>>>(a);
  ChooseToken<<<static_cast<uint32_t>(a.padded_sequences), kChooseThreads, 0, handle>>>(a);
}

void ConfidenceCuda(Stream& stream, const ConfidenceArgs& a) {
  if (a.padded_sequences == 0 || a.steps == 0) return;
  const dim3 grid(static_cast<uint32_t>(a.padded_sequences), static_cast<uint32_t>(a.steps));
  ScoreProposal<<<grid, kConfidenceThreads, 0, CudaStreamOf(stream)>>>(a);
}

}  // namespace firesteel
