#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/mma.cuh"
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
constexpr int32_t kConfidenceThreads = 128;

// The tensor-core form, for bf16 tables of the published rank.
constexpr int32_t kRank = 256;
constexpr int32_t kPieces =
    kRank / 32;  // 16-byte pieces that a lane holds of a row of either table
constexpr int32_t kTileOutputs = 16;
constexpr int32_t kTileSequences = 8;
constexpr int32_t kTilesPerWarp = 4;
constexpr int32_t kBlockOutputs = kLogitWarps * kTilesPerWarp * kTileOutputs;
constexpr int32_t kTilesTogether = 4;  // of sequences: their base logits are in flight at a time
constexpr int32_t kBlockSequences = 128;

// The embedding of the token before proposal `step` of a draft block.
__device__ const uint16_t* PredecessorRow(const DraftMeta& draft, const uint16_t* w1, int32_t rank,
                                          int64_t sequence, int32_t block, int32_t step) {
  return w1 + int64_t{draft.chain[sequence * (block + 1) + step]} * rank;
}

// Any storage and rank. A warp per output and sequence: lane l adds the quads l, l + 32, ... of a row, then the lanes are
// added in one tree.
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

// Where a lane's accumulators of a tile of outputs and sequences lie in [sequences, vocab]: entry e is output
// lane / 4 + e / 2 * 8 of sequence 2 * (lane % 4) + e % 2.
struct LogitTile {
  int32_t outputs;    // of the lane's two that exist
  int32_t sequences;  // live ones from the lane's first on
  int64_t stride;     // from one sequence to the next

  __device__ bool Has(int e) const { return e / 2 < outputs && e % 2 < sequences; }
  __device__ int64_t Offset(int e) const { return e % 2 * stride + e / 2 * 8; }
};

// W1 rows of the predecessors as [tiles, kPieces, lanes] pieces for the whole block; zeros past the live sequences.
__device__ void StageEmbeddings(const MarkovStepArgs& a, int32_t first_sequence, int32_t live,
                                int32_t tiles, uint4* embedding) {
  constexpr int32_t kTogether = 4;  // predecessors, and then rows, that are waited for at a time
  static_assert(kPieces == kLogitWarps);
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t owner = thread % kWarpSize / 4;  // the sequence of a tile
  const int32_t piece = thread / kWarpSize * 4 + thread % 4;
  for (int32_t n = 0; n < tiles; n += kTogether) {
    const uint4* row[kTogether];
#pragma unroll
    for (int32_t m = 0; m < kTogether; ++m) {
      const int32_t sequence = Min(first_sequence + (n + m) * kTileSequences + owner, live - 1);
      row[m] = reinterpret_cast<const uint4*>(
          PredecessorRow(a.draft, a.w1, kRank, sequence, a.block, a.step));
    }
#pragma unroll
    for (int32_t m = 0; m < kTogether; ++m) {
      if (n + m >= tiles) break;
      const bool exists = first_sequence + (n + m) * kTileSequences + owner < live;
      embedding[(n + m) * kPieces * kWarpSize + thread] = exists ? __ldg(row[m] + piece) : uint4{};
    }
  }
  __syncthreads();
}

// W2 is read once for kBlockSequences sequences, straight into the layout of a tensor-core operand: a lane takes 16 bytes of
// every 64 of a row, of W2 and of W1 alike, which permutes the columns of both in one way. The order of summation over
// the rank is the instruction's, piece by piece, for any number of sequences.
// Grid: (blocks of outputs, blocks of sequences). Dynamic shared memory: W1 rows as [tiles of sequences, kPieces, lanes] pieces.
__global__ void __launch_bounds__(kLogitWarps* kWarpSize, 2) BiasedLogitTiles(MarkovStepArgs a) {
  extern __shared__ uint4 embedding[];
  const int32_t live = Min(*a.live_sequences, a.padded_sequences);
  const int32_t first_sequence = static_cast<int32_t>(blockIdx.y) * kBlockSequences;
  const int32_t tiles = CeilDiv(Min(live - first_sequence, kBlockSequences), kTileSequences);
  if (tiles <= 0) return;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % kWarpSize;
  const int32_t warp = thread / kWarpSize;
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * kBlockOutputs + warp * kTileOutputs;
  StageEmbeddings(a, first_sequence, live, tiles, embedding);
  for (int32_t t = 0; t < kTilesPerWarp; ++t) {
    const int32_t first = begin + t * kLogitWarps * kTileOutputs;
    if (first >= a.w2.out) return;
    uint4 weight[2][kPieces];  // rows first + lane / 4 and eight further on
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      // A row past the end only needs some address: its outputs are not stored.
      const int64_t existing = Min(first + lane / 4 + half * 8, a.w2.out - 1);
      const auto* row = static_cast<const uint4*>(a.w2.data) + existing * (kRank / 8);
#pragma unroll
      for (int32_t p = 0; p < kPieces; ++p) weight[half][p] = __ldg(row + 4 * p + lane % 4);
    }
    const int32_t output = first + lane / 4;
    const int32_t outputs = output + 8 < a.w2.out ? 2 : (output < a.w2.out ? 1 : 0);
    for (int32_t n = 0; n < tiles; n += kTilesTogether) {
      const int32_t sequence = first_sequence + n * kTileSequences + 2 * (lane % 4);
      float base[kTilesTogether][4];
      float bias[kTilesTogether][4] = {};
      const float* from = a.base + (int64_t{sequence} * a.block + a.step) * a.w2.out + output;
#pragma unroll
      for (int32_t m = 0; m < kTilesTogether; ++m) {
        const LogitTile tile{outputs, live - sequence - m * kTileSequences,
                             int64_t{a.block} * a.w2.out};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          base[m][e] = tile.Has(e) ? from[m * kTileSequences * tile.stride + tile.Offset(e)] : 0.0F;
        }
      }
#pragma unroll
      for (int32_t p = 0; p < kPieces; ++p) {
        const uint4& low = weight[0][p];
        const uint4& high = weight[1][p];
#pragma unroll
        for (int32_t m = 0; m < kTilesTogether; ++m) {
          if (n + m >= tiles) break;
          const uint4 x = embedding[((n + m) * kPieces + p) * kWarpSize + lane];
          MmaBf16(bias[m], {low.x, high.x, low.y, high.y}, x.x, x.y);
          MmaBf16(bias[m], {low.z, high.z, low.w, high.w}, x.z, x.w);
        }
      }
      float* to = a.logits + int64_t{sequence} * a.w2.out + output;
#pragma unroll
      for (int32_t m = 0; m < kTilesTogether; ++m) {
        const LogitTile tile{outputs, live - sequence - m * kTileSequences, a.w2.out};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (!tile.Has(e)) continue;
          to[m * kTileSequences * tile.stride + tile.Offset(e)] = base[m][e] + bias[m][e];
        }
      }
    }
  }
}

// A cluster per draft sequence. Grid: (blocks of a cluster, sequences).
__global__ void __cluster_dims__(RowCluster::kBlocks, 1, 1)
    __launch_bounds__(RowCluster::kBlockThreads, 2) ChooseToken(MarkovStepArgs a) {
  const int64_t i = blockIdx.y;
  if (i >= Min(*a.live_sequences, a.padded_sequences)) return;
  RowCluster cluster;
  const int32_t vocab = a.w2.out;
  const int32_t slot = a.draft.slot[i];
  const float* logits = a.logits + i * vocab;
  const float temperature = a.slots.sampling[slot].temperature;
  int32_t token;
  if (temperature == 0.0F) {
    token = ClusterArgMax(cluster, logits, vocab).index;
  } else {
    float* q = a.slots.draft_probs + (int64_t{slot} * a.slots.draft_length + a.step) * vocab;
    ClusterSoftmax(cluster, logits, 1.0F / temperature, vocab, q);
    const int64_t position = int64_t{a.draft.position[i * a.block + a.step]} + 1;
    token = ClusterDrawFrom(cluster, q, vocab, a.slots.sampling[slot].seed, position,
                            DrawPurpose::kDraft);
  }
  if (!cluster.IsFirst()) return;
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

// Whether the tensor-core form takes these tables: it depends on their shapes and storage alone.
bool HasTiles(const MarkovStepArgs& a) {
  return a.w2.dtype == DType::kBf16 && a.w2.in == kRank &&
         reinterpret_cast<uintptr_t>(a.w2.data) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(a.w1) % 16 == 0;
}

}  // namespace

void MarkovStepCuda(Stream& stream, const MarkovStepArgs& a) {
  if (a.padded_sequences == 0) return;
  const cudaStream_t handle = CudaStreamOf(stream);
  if (HasTiles(a)) {
    constexpr int32_t kTileBytes = kTileSequences * kRank * 2;
    constexpr int32_t kMostBytes = kBlockSequences / kTileSequences * kTileBytes;
    cudaFuncSetAttribute(BiasedLogitTiles, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostBytes);
    const int32_t bytes = Min(kMostBytes, CeilDiv(a.padded_sequences, kTileSequences) * kTileBytes);
    const dim3 grid(static_cast<uint32_t>(CeilDiv(a.w2.out, kBlockOutputs)),
                    static_cast<uint32_t>(CeilDiv(a.padded_sequences, kBlockSequences)));
    BiasedLogitTiles<<<grid, kLogitWarps * kWarpSize, static_cast<size_t>(bytes), handle>>>(a);
  } else {
    const uint32_t tiles = static_cast<uint32_t>(CeilDiv(a.w2.out, kOutputsPerBlock));
    BiasedLogits<<<tiles, kLogitWarps * kWarpSize, 0, handle>>>(a);
  }
  const dim3 clusters(RowCluster::kBlocks, static_cast<uint32_t>(a.padded_sequences));
  ChooseToken<<<clusters, RowCluster::kBlockThreads, 0, handle>>>(a);
}

void ConfidenceCuda(Stream& stream, const ConfidenceArgs& a) {
  if (a.padded_sequences == 0 || a.steps == 0) return;
  const dim3 grid(static_cast<uint32_t>(a.padded_sequences), static_cast<uint32_t>(a.steps));
  ScoreProposal<<<grid, kConfidenceThreads, 0, CudaStreamOf(stream)>>>(a);
}

}  // namespace firesteel
