// Sparse decode attention on Hopper for 64 heads of a row: what decode_attention.cuh does for fewer, with the heads as the rows
// of the matrix unit in place of the keys. Same bits.
//
//   scores   S = Q K^T, 64 heads x 64 keys: warpgroup 0. Four lanes hold all scores of a head, so that its softmax needs no
//            other warp
//   output   each warpgroup: half of the columns of O += P V, in registers. Warpgroup 0 has P in registers, 1 in shared memory
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/sm90/wgmma_wide.cuh"
#include "kernels/ops/sparse_attention/sm90/decode_totals.cuh"

namespace firesteel::sm90 {

inline constexpr int kWideHeads = 64;
inline constexpr int kWideOutputs = 64;  // of a thread: 64 x 128 by a warpgroup
inline constexpr int kWideWeightsBarrier =
    kGroupBarrier + 2;  // and the next: weights of either parity are there
// Of a thread of the producers, of warpgroup 0 and of warpgroup 1: 512 for one of each and a producer more.
inline constexpr int kWideProducerRegisters = 72;
inline constexpr int kWideScoreRegisters = 208;
inline constexpr int kWideValueRegisters = 160;

struct WideShared {
  static constexpr int kStages = 2;
  // Offsets in bytes. Stage 0 takes what the peer sends at the end, `queries` the block's part of the result.
  static constexpr int kQueries = kStages * kTileBytes;
  static constexpr int kWeights = kQueries + kWideHeads * kDecodeHeadDim * 2;  // two tiles of P
  static constexpr int kWeightBytes = kWideHeads * kSlabRowBytes;
  static constexpr int kFloats = kWeights + 2 * kWeightBytes;

  float rescale[2][kWideHeads];  // factor of what was summed before tile use % 2
  DecodeTotals<kWideHeads> totals;
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

inline constexpr int kWideSharedBytes = WideShared::kFloats + static_cast<int>(sizeof(WideShared));

// A consumer thread's part: two heads, four lanes each.
struct WideConsumer : Consumer {
  WideShared* shared;

  __device__ __forceinline__ WideConsumer(const Consumer& c, WideShared* shared)
      : Consumer(c), shared(shared) {}

  __device__ __forceinline__ int Head(int i) const { return warp % 4 * 16 + lane / 4 + i * 8; }
  __device__ __forceinline__ int Part() const { return lane % kSumParts; }
  // Of four 8x8 tiles, two rows by two columns of them, whose first is piece `piece` of the warp's first head: the row and
  // the piece that this lane supplies the address of.
  __device__ __forceinline__ int TileRow() const { return warp % 4 * 16 + lane % 16; }
  __device__ __forceinline__ int TilePiece(int piece) const { return piece + lane / 16; }
  __device__ __forceinline__ uint32_t Weights(int use) const {
    return base + WideShared::kWeights + use % 2 * WideShared::kWeightBytes;
  }
  // The warpgroup's columns of a tile's values.
  __device__ __forceinline__ uint64_t Values(uint32_t keys) const {
    return SlabRowDescriptor(keys + group * kHalfSlabs * kTileSlabBytes, kTileSlabBytes);
  }
  // From there to those of half `half`, keys 16 k on.
  static __device__ __forceinline__ uint64_t ValueStep(int half, int k) {
    return (half * kMergeSlabs * kTileSlabBytes + k * 16 * kSlabRowBytes) / 16;
  }
};

inline constexpr int kWideScores = kTileKeys / 2;  // of a thread: s[4 j + i] as wgmma_wide.cuh says

// Softmax of the thread's two heads.
struct WideSoftmax {
  float reference[2] = {kNoReference, kNoReference};
  float sum[2] = {0.0F, 0.0F};

  // Moves the references of heads with a score above their limit; `rescale` is the factor of what was summed before.
  __device__ __forceinline__ void Move(const float (&s)[kWideScores], float scale,
                                       float (&rescale)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float m = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
      for (int j = 4; j < kWideScores; j += 4) {
        m = fmaxf(m, fmaxf(s[j + 2 * h], s[j + 2 * h + 1]));
      }
      m = fmaxf(m, __shfl_xor_sync(0xffffffffU, m, 1));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffU, m, 2)) * scale;
      const bool moves = m > reference[h] + kMaxSlack;
      rescale[h] = moves ? Exp2(reference[h] - m) : 1.0F;
      if (moves) reference[h] = m;
      sum[h] *= rescale[h];
    }
  }

  // Weights of the scores, as the matrix unit takes them from registers, and their sums.
  __device__ __forceinline__ void Weigh(const float (&s)[kWideScores], float scale,
                                        uint32_t (&p)[kWideScores / 2]) {
#pragma unroll
    for (int j = 0; j < kWideScores; j += 4) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t pair = PackBf16(Exp2(fmaf(s[j + 2 * h], scale, -reference[h])),
                                       Exp2(fmaf(s[j + 2 * h + 1], scale, -reference[h])));
        sum[h] += __uint_as_float(pair << 16);
        sum[h] += __uint_as_float(pair & 0xffff0000U);
        p[j / 2 + h] = pair;
      }
    }
  }
};

// S = Q K^T of the tile in `keys`; asynchronous.
__device__ __forceinline__ void EnqueueWideScores(const WideConsumer& c, uint32_t keys,
                                                  float (&s)[kWideScores]) {
  uint32_t at = c.base + WideShared::kQueries;
  asm volatile("" : "+r"(at));  // hides that it never changes: 32 descriptors kept would not fit
  const uint64_t queries = SlabDescriptor(at);
  const uint64_t key_rows = SlabDescriptor(keys);
  WgmmaFence();
#pragma unroll
  for (int slab = 0; slab < kDecodeSlabs; ++slab) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Wgmma<kTileKeys, false>::Run(s, queries + (slab * kWideHeads * kSlabRowBytes + k * 32) / 16,
                                   key_rows + (slab * kTileSlabBytes + k * 32) / 16, slab + k > 0);
    }
  }
  WgmmaCommit();
}

// -infinity past the tile's `count` keys.
__device__ __forceinline__ void MaskWideScores(const WideConsumer& c, int count,
                                               float (&s)[kWideScores]) {
  if (count == kTileKeys) return;
#pragma unroll
  for (int j = 0; j < kWideScores; j += 4) {
    const int key = j * 2 + c.Part() * 2;
    if (key >= count) s[j] = s[j + 2] = -INFINITY;
    if (key + 1 >= count) s[j + 1] = s[j + 3] = -INFINITY;
  }
}

// The weights and factors of use `use` for warpgroup 1.
__device__ __forceinline__ void StoreWideWeights(const WideConsumer& c, int use,
                                                 const uint32_t (&p)[kWideScores / 2],
                                                 const float (&rescale)[2]) {
#pragma unroll
  for (int i = 0; i < kWideScores / 2; i += 4) {
    StoreTiles4(c.Weights(use) + SlabOffset(c.TileRow(), c.TilePiece(i / 2)), p[i], p[i + 1],
                p[i + 2], p[i + 3]);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (c.Part() == h) c.shared->rescale[use % 2][c.Head(h)] = rescale[h];
  }
  FenceSharedForWgmma();
  ArriveNamedBarrier(kWideWeightsBarrier + use % 2, kConsumerThreads);
}

__device__ __forceinline__ void RescaleWideOutput(float low, float high,
                                                  float (&o)[2][kWideOutputs]) {
  if (!__any_sync(0xffffffffU, low != 1.0F || high != 1.0F)) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < kWideOutputs; i += 4) {
      o[half][i] *= low;
      o[half][i + 1] *= low;
      o[half][i + 2] *= high;
      o[half][i + 3] *= high;
    }
  }
}

// Merges half `kHalf` of the warpgroup's columns with the peer's and stores it.
template <KvFormat kFormat, int kHalf>
__device__ __forceinline__ void MergeWideColumns(const WideConsumer& c, uint8_t* memory,
                                                 const float (&o)[2][kWideOutputs],
                                                 __nv_bfloat16* out) {
  constexpr int kRowBytes = kMergeDim * 2;
  const float(&factor)[2][kWideHeads] = c.shared->totals.factor[c.group];
  const float own[2] = {factor[0][c.Head(0)], factor[0][c.Head(1)]};
  const float other[2] = {factor[1][c.Head(0)], factor[1][c.Head(1)]};
  uint8_t* rows = memory + WideShared::kQueries + c.group * kWideHeads * kRowBytes;
  const uint32_t row_at = SharedAddress(rows) + c.TileRow() * kRowBytes;
  const auto merged = [&](int i, uint32_t* low, uint32_t* high) {
    const float4 p = *reinterpret_cast<const float4*>(
        memory + (i / 4 * kConsumerThreads + static_cast<int>(threadIdx.x)) * 16);
    const float* v = o[kHalf] + i;
    *low = PackBf16(fmaf(p.x, other[0], v[0] * own[0]), fmaf(p.y, other[0], v[1] * own[0]));
    *high = PackBf16(fmaf(p.z, other[1], v[2] * own[1]), fmaf(p.w, other[1], v[3] * own[1]));
  };
#pragma unroll
  for (int i = 0; i < kWideOutputs; i += 8) {
    uint32_t tile[4];
    merged(i, &tile[0], &tile[1]);
    merged(i + 4, &tile[2], &tile[3]);
    StoreTiles4(row_at + ((c.TilePiece(i / 4) ^ (c.TileRow() & 7)) << 4), tile[0], tile[1], tile[2],
                tile[3]);
  }
  NamedBarrier(kGroupBarrier + c.group, kWarpgroup);
  StoreMergedRows<kWideHeads, kFormat>(c, rows, c.group * kHalfSlabs + kHalf * kMergeSlabs, out);
}

// The end of either warpgroup: exchanges half of the output with the peer, and stores the other.
template <KvFormat kFormat>
__device__ __forceinline__ void FinishWide(const SparseAttentionArgs& a, const WideConsumer& c,
                                           const float (&o)[2][kWideOutputs], int64_t row,
                                           int first_head, uint8_t* memory) {
  DecodeTotals<kWideHeads>& totals = c.shared->totals;
  const uint32_t peer = static_cast<uint32_t>(c.rank ^ 1);
  const uint32_t to = PeerAddress(c.base + threadIdx.x * 16, peer);
  const uint32_t received = PeerAddress(SharedAddress(&totals.received), peer);
  if (c.rank == 0) {
    SendRegisters<kWideOutputs>(o[1], to, received);
  } else {
    SendRegisters<kWideOutputs>(o[0], to, received);
  }
  const float sink = a.sink[first_head + c.thread % kWideHeads] * kLog2e;
  NamedBarrier(kConsumerBarrier, kConsumerThreads);  // this block's references and sums are there
  WaitBarrier(SharedAddress(&totals.received), 0);
  totals.ComputeFactors(c.rank, c.group, c.thread, sink);
  NamedBarrier(kGroupBarrier + c.group, kWarpgroup);
  __nv_bfloat16* out = static_cast<__nv_bfloat16*>(a.out.data) + row * a.out.stride +
                       int64_t{first_head} * kDecodeHeadDim;
  if (c.rank == 0) {
    MergeWideColumns<kFormat, 0>(c, memory, o, out);
  } else {
    MergeWideColumns<kFormat, 1>(c, memory, o, out);
  }
}

// O += P V of the tile in `keys`, with P in registers; asynchronous.
__device__ __forceinline__ void EnqueueWideOutput(const WideConsumer& c, uint32_t keys,
                                                  const uint32_t (&p)[kWideScores / 2],
                                                  float (&o)[2][kWideOutputs]) {
  const uint64_t values = c.Values(keys);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      WgmmaWide(o[half], p + k * 4, values + WideConsumer::ValueStep(half, k));
    }
  }
  WgmmaCommit();
}

// Warpgroup 0.
__device__ __forceinline__ void ConsumeWideScores(const SparseAttentionArgs& a,
                                                  const RowLists& lists, const WideConsumer& c,
                                                  const TileStages<WideShared::kStages>& stages,
                                                  float (&o)[2][kWideOutputs]) {
  const float scale = a.scale * kLog2e;
  WideSoftmax softmax;
  int use = 0;
  for (int tile = c.rank; tile < lists.tiles; tile += kClusterBlocks, ++use) {
    float s[kWideScores];
    stages.WaitFull(use);
    EnqueueWideScores(c, stages.Keys(use), s);
    WgmmaWait<0>();
    uint32_t p[kWideScores / 2];
    MaskWideScores(c, lists.Count(tile), s);
    float rescale[2];
    softmax.Move(s, scale, rescale);
    softmax.Weigh(s, scale, p);
    StoreWideWeights(c, use, p, rescale);
    RescaleWideOutput(rescale[0], rescale[1], o);
    EnqueueWideOutput(c, stages.Keys(use), p, o);
    WgmmaWait<0>();
    // Not later, for scores that run beside this: decoding keys is what takes longest.
    stages.Release(use);
  }
  c.shared->totals.WaitPeerReady(c.rank);
  DecodeTotals<kWideHeads>& totals = c.shared->totals;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    totals.Publish(c.rank, &totals.sum[c.rank][c.Head(h)][c.Part()], softmax.sum[h]);
  }
  if (c.Part() < 2) {
    const float reference = c.Part() == 0 ? softmax.reference[0] : softmax.reference[1];
    totals.Publish(c.rank, &totals.reference[c.rank][c.Head(c.Part())], reference);
  }
}

// Warpgroup 1.
__device__ __forceinline__ void ConsumeWideValues(const RowLists& lists, const WideConsumer& c,
                                                  const TileStages<WideShared::kStages>& stages,
                                                  float (&o)[2][kWideOutputs]) {
  int use = 0;
  for (int tile = c.rank; tile < lists.tiles; tile += kClusterBlocks, ++use) {
    stages.WaitFull(use);
    NamedBarrier(kWideWeightsBarrier + use % 2, kConsumerThreads);
    const float* rescale = c.shared->rescale[use % 2];
    RescaleWideOutput(rescale[c.Head(0)], rescale[c.Head(1)], o);
    const uint64_t values = c.Values(stages.Keys(use));
    const uint64_t weights = SlabDescriptor(c.Weights(use));
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        WgmmaWide(o[half], weights + k * 32 / 16, values + WideConsumer::ValueStep(half, k));
      }
    }
    WgmmaCommit();
    WgmmaWait<0>();
    stages.Release(use);
  }
  c.shared->totals.WaitPeerReady(c.rank);
}

// A consumer warpgroup from the cluster's start to the end.
template <KvFormat kFormat, int kGroup>
__device__ __forceinline__ void ConsumeWide(const SparseAttentionArgs& a, const RowLists& lists,
                                            const WideConsumer& c,
                                            const TileStages<WideShared::kStages>& stages,
                                            int64_t row, int first_head, uint8_t* memory) {
  LoadDecodeQueries<kWideHeads, kFormat>(static_cast<const __nv_bfloat16*>(a.q.data) +
                                             row * a.q.stride +
                                             int64_t{first_head} * kDecodeHeadDim,
                                         c.base + WideShared::kQueries);
  WaitCluster();
  GrowRegisters<kGroup == 0 ? kWideScoreRegisters : kWideValueRegisters>();
  NamedBarrier(kConsumerBarrier, kConsumerThreads);
  float o[2][kWideOutputs];  // halves of the warpgroup's columns
#pragma unroll
  for (int i = 0; i < kWideOutputs; ++i) o[0][i] = o[1][i] = 0.0F;
  if constexpr (kGroup == 0) {
    ConsumeWideScores(a, lists, c, stages, o);
  } else {
    ConsumeWideValues(lists, c, stages, o);
  }
  AllowNextKernel();
  FinishWide<kFormat>(a, c, o, row, first_head, memory);
}

// Grid: (2 * heads / 64, rows).
template <KvFormat kFormat>
__global__ void __cluster_dims__(kClusterBlocks, 1, 1) __launch_bounds__(kDecodeThreads, 1)
    WideDecodeAttention(const __grid_constant__ SparseAttentionArgs a) {
  extern __shared__ __align__(1024) uint8_t memory[];
  RunDecodeBlock<kFormat, WideShared, kWideProducerRegisters>(
      a, memory,
      [&](const RowLists& lists, const auto& stages, const Consumer& place, WideShared* shared,
          int64_t row) {
        const WideConsumer c(place, shared);
        const int first_head = static_cast<int>(blockIdx.x) / kClusterBlocks * kWideHeads;
        if (c.group == 0) {
          ConsumeWide<kFormat, 0>(a, lists, c, stages, row, first_head, memory);
        } else {
          ConsumeWide<kFormat, 1>(a, lists, c, stages, row, first_head, memory);
        }
      });
}

}  // namespace firesteel::sm90
