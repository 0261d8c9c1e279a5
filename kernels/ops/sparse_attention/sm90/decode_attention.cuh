// Sparse decode attention on Hopper for up to 32 heads of a row: rows with lists of their own over the window cache and the
// compressed cache.
//
// A cluster of two thread blocks serves N heads of one row. The row's tiles of 64 keys go to the blocks in turn, whatever
// the batch; each block runs an online softmax over its tiles (decode_totals.cuh), then each merges half of the output's columns
// in block order. In a block, 256 threads gather and decode tiles into stages while two warpgroups use them:
//   scores   S^T = K Q^T, 64 keys x N heads, and weights P^T into shared memory: warpgroup 0
//   output   each warpgroup: four of the eight 64-wide column blocks of O^T += V^T P^T, in registers
//   sums     warpgroup 1
// A head's arithmetic depends on its query and its row's lists alone: not on N, the neighbours or the batch.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "kernels/cuda/early_launch.cuh"
#include "kernels/ops/sparse_attention/sm90/decode_totals.cuh"

namespace firesteel::sm90 {

// Of a thread; a consumer thread, which holds 2 N of the output, gets what is left of 256 for the pair.
inline constexpr int kProducerRegisters = 96;

// Heads are read in pairs: arrays of floats start at multiples of eight bytes.
template <int N>
struct DecodeShared {
  static constexpr int kStages = N <= 16 ? 3 : 2;
  // Offsets in bytes. Stage 0 takes what the peer sends at the end, `queries` the block's part of the result.
  static constexpr int kQueries = kStages * kTileBytes;
  static constexpr int kQueryBytes = N * kDecodeHeadDim * 2;
  static constexpr int kWeights = kQueries + kQueryBytes;  // two tiles of P^T, each one slab
  static constexpr int kWeightBytes = N * kSlabRowBytes;
  static constexpr int kFloats = kWeights + 2 * kWeightBytes;

  float tile_max[4][N];  // of a score warp's sixteen keys
  float reference[N];    // what weights are relative to, in powers of two
  float
      rescale[2]
             [N];  // factor of what was summed before tile use % 2, if a reference has moved there
  DecodeTotals<N> totals;
  uint64_t full[kStages];
  uint64_t empty[kStages];
  bool moved[2];  // a reference has moved before tile use % 2
};

template <int N>
constexpr int DecodeSharedBytes() {
  return DecodeShared<N>::kFloats + static_cast<int>(sizeof(DecodeShared<N>));
}

// A consumer thread's part in tiles of 64 keys by N heads.
template <int N>
struct TileConsumer : Consumer {
  using Shared = DecodeShared<N>;
  Shared* shared;

  __device__ __forceinline__ TileConsumer(const Consumer& c, Shared* shared)
      : Consumer(c), shared(shared) {}

  // First of the two heads whose accumulators i + 0 and i + 1 (and i + 2, i + 3) this thread holds.
  __device__ __forceinline__ int Head(int i) const { return i * 2 + lane % 4 * 2; }
};

// S^T = K Q^T of the tile in `keys`, -infinity past the tile's `count` keys.
template <int N>
__device__ __forceinline__ void ComputeScores(const TileConsumer<N>& c, uint32_t keys, int count,
                                              float (&s)[N / 2]) {
  const uint64_t key_rows = SlabDescriptor(keys);
  const uint64_t queries = SlabDescriptor(c.base + DecodeShared<N>::kQueries);
  WgmmaFence();
#pragma unroll
  for (int slab = 0; slab < kDecodeSlabs; ++slab) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Wgmma<N, false>::Run(s, key_rows + (slab * kTileSlabBytes + k * 32) / 16,
                           queries + (slab * N * kSlabRowBytes + k * 32) / 16, slab + k > 0);
    }
  }
  WgmmaCommit();
  WgmmaWait<0>();
  if (count == kTileKeys) return;
  const int key = c.warp % 4 * 16 + c.lane / 4;
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
    if (key >= count) s[i] = s[i + 1] = -INFINITY;
    if (key + 8 >= count) s[i + 2] = s[i + 3] = -INFINITY;
  }
}

// Moves the references of heads with a score above their limit. Whether a head's moves depends on its own scores alone.
template <int N>
__device__ __forceinline__ void MoveReferences(const TileConsumer<N>& c, const float (&s)[N / 2],
                                               int use, float scale, float2 (&reference)[N / 8]) {
  bool above = false;
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
    above |= fmaxf(s[i], s[i + 2]) * scale > reference[i / 4].x + kMaxSlack;
    above |= fmaxf(s[i + 1], s[i + 3]) * scale > reference[i / 4].y + kMaxSlack;
  }
  const bool moved = NamedBarrierAny(kGroupBarrier, kWarpgroup, above);
  if (c.thread == 0) c.shared->moved[use % 2] = moved;
  if (!moved) return;
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
    float m0 = fmaxf(s[i], s[i + 2]);
    float m1 = fmaxf(s[i + 1], s[i + 3]);
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      m0 = fmaxf(m0, __shfl_xor_sync(0xffffffffU, m0, step));
      m1 = fmaxf(m1, __shfl_xor_sync(0xffffffffU, m1, step));
    }
    if (c.lane < 4) {
      *reinterpret_cast<float2*>(&c.shared->tile_max[c.warp % 4][c.Head(i)]) = make_float2(m0, m1);
    }
  }
  NamedBarrier(kGroupBarrier, kWarpgroup);
  if (c.thread < N) {
    const int n = c.thread;
    float m = c.shared->tile_max[0][n];
#pragma unroll
    for (int w = 1; w < 4; ++w) m = fmaxf(m, c.shared->tile_max[w][n]);
    m *= scale;
    const float old = c.shared->reference[n];
    const bool moves = m > old + kMaxSlack;
    c.shared->rescale[use % 2][n] = moves ? Exp2(old - m) : 1.0F;
    if (moves) c.shared->reference[n] = m;
  }
  NamedBarrier(kGroupBarrier, kWarpgroup);
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
    reference[i / 4] = *reinterpret_cast<const float2*>(&c.shared->reference[c.Head(i)]);
  }
}

// P^T of use `use` from the scores.
template <int N>
__device__ __forceinline__ void StoreWeights(const TileConsumer<N>& c, const float (&s)[N / 2],
                                             int use, float scale,
                                             const float2 (&reference)[N / 8]) {
  using Shared = DecodeShared<N>;
  const uint32_t weights = c.base + Shared::kWeights + use % 2 * Shared::kWeightBytes;
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
    const float2 m = reference[i / 4];
    // Eight heads by sixteen keys: two 8x8 tiles side by side in the slab row of each head.
    const uint32_t at = weights + SlabOffset(i * 2 + c.lane % 8, c.warp % 4 * 2 + c.lane / 8 % 2);
    StoreTransposed2(
        at, PackBf16(Exp2(fmaf(s[i], scale, -m.x)), Exp2(fmaf(s[i + 1], scale, -m.y))),
        PackBf16(Exp2(fmaf(s[i + 2], scale, -m.x)), Exp2(fmaf(s[i + 3], scale, -m.y))));
  }
  FenceSharedForWgmma();
}

// The output so far times the factors of use `use`.
template <int N>
__device__ __forceinline__ void RescaleOutput(const TileConsumer<N>& c, int use,
                                              float (&o)[kHalfSlabs][N / 2]) {
  if (!c.shared->moved[use % 2]) return;
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
    const float2 factor = *reinterpret_cast<const float2*>(&c.shared->rescale[use % 2][c.Head(i)]);
#pragma unroll
    for (int b = 0; b < kHalfSlabs; ++b) {
      o[b][i] *= factor.x;
      o[b][i + 1] *= factor.y;
      o[b][i + 2] *= factor.x;
      o[b][i + 3] *= factor.y;
    }
  }
}

// O^T += V^T P^T for the warpgroup's column blocks; asynchronous.
template <int N>
__device__ __forceinline__ void EnqueueOutput(const TileConsumer<N>& c, uint32_t keys, int use,
                                              float (&o)[kHalfSlabs][N / 2]) {
  using Shared = DecodeShared<N>;
  const uint64_t values = SlabDescriptor(keys + c.group * kHalfSlabs * kTileSlabBytes);
  const uint64_t weights =
      SlabDescriptor(c.base + Shared::kWeights + use % 2 * Shared::kWeightBytes);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k) {
#pragma unroll
    for (int b = 0; b < kHalfSlabs; ++b) {
      Wgmma<N, true>::Run(o[b], values + (b * kTileSlabBytes + k * 16 * kSlabRowBytes) / 16,
                          weights + k * 32 / 16, 1);
    }
  }
  WgmmaCommit();
}

// Thread 4 n + t adds part t of head n's weights, in order.
template <int N>
__device__ __forceinline__ void AddWeights(const TileConsumer<N>& c, int use, float& sum) {
  using Shared = DecodeShared<N>;
  if (c.thread >= kSumParts * N) return;
  const int n = c.thread / kSumParts;
  if (c.shared->moved[use % 2]) sum *= c.shared->rescale[use % 2][n];
  const uint8_t* row = reinterpret_cast<const uint8_t*>(c.shared) - Shared::kFloats +
                       Shared::kWeights + use % 2 * Shared::kWeightBytes;
#pragma unroll
  for (int piece = 0; piece < 8; ++piece) {
    const uint32_t pair =
        *reinterpret_cast<const uint32_t*>(row + SlabOffset(n, piece) + c.thread % kSumParts * 4);
    sum += __uint_as_float(pair << 16);
    sum += __uint_as_float(pair & 0xffff0000U);
  }
}

// Sends the peer's columns of the output, and this block's references and sums.
template <int N>
__device__ __forceinline__ void SendToPeer(const TileConsumer<N>& c,
                                           const float (&o)[kHalfSlabs][N / 2], float sum) {
  DecodeTotals<N>& totals = c.shared->totals;
  if (c.group == 0 && c.thread < N) {
    totals.Publish(c.rank, &totals.reference[c.rank][c.thread], c.shared->reference[c.thread]);
  }
  if (c.group == 1 && c.thread < kSumParts * N) {
    totals.Publish(c.rank, &totals.sum[c.rank][0][0] + c.thread, sum);
  }
  const uint32_t peer = static_cast<uint32_t>(c.rank ^ 1);
  const uint32_t to = PeerAddress(c.base + threadIdx.x * 16, peer);
  const uint32_t received = PeerAddress(SharedAddress(&totals.received), peer);
  if (c.rank == 0) {
    SendRegisters<kMergeSlabs * N / 2>(o[kMergeSlabs], to, received);
  } else {
    SendRegisters<kMergeSlabs * N / 2>(o[0], to, received);
  }
}

// Merges column blocks kFirst and kFirst + 1 of the warpgroup with the peer's and stores them.
template <int N, KvFormat kFormat, int kFirst>
__device__ __forceinline__ void MergeColumns(const TileConsumer<N>& c, uint8_t* memory,
                                             const float (&o)[kHalfSlabs][N / 2],
                                             __nv_bfloat16* out) {
  constexpr int kRowBytes = kMergeDim * 2;
  const float(&factor)[2][N] = c.shared->totals.factor[c.group];
  uint8_t* rows = memory + DecodeShared<N>::kQueries + c.group * N * kRowBytes;
  const uint32_t rows_at = SharedAddress(rows);
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
    const float2 own = *reinterpret_cast<const float2*>(&factor[0][c.Head(i)]);
    const float2 other = *reinterpret_cast<const float2*>(&factor[1][c.Head(i)]);
    const int n = i * 2 + c.lane % 8;
#pragma unroll
    for (int b = 0; b < kMergeSlabs; ++b) {
      const float4 p = *reinterpret_cast<const float4*>(
          memory + ((b * (N / 8) + i / 4) * kConsumerThreads + threadIdx.x) * 16);
      const float(&v)[N / 2] = o[kFirst + b];
      const int piece = b * 8 + c.warp % 4 * 2 + c.lane / 8 % 2;
      StoreTransposed2(
          rows_at + n * kRowBytes + ((piece ^ (n & 7)) << 4),
          PackBf16(fmaf(p.x, other.x, v[i] * own.x), fmaf(p.y, other.y, v[i + 1] * own.y)),
          PackBf16(fmaf(p.z, other.x, v[i + 2] * own.x), fmaf(p.w, other.y, v[i + 3] * own.y)));
    }
  }
  NamedBarrier(kGroupBarrier + c.group, kWarpgroup);
  StoreMergedRows<N, kFormat>(c, rows, c.group * kHalfSlabs + kFirst, out);
}

template <int N, KvFormat kFormat>
__device__ __forceinline__ void ConsumeTiles(const SparseAttentionArgs& a, const RowLists& lists,
                                             const TileConsumer<N>& c,
                                             const TileStages<DecodeShared<N>::kStages>& stages,
                                             int64_t row, int first_head, uint8_t* memory) {
  using Shared = DecodeShared<N>;
  const int64_t at = row * a.q.stride + int64_t{first_head} * kDecodeHeadDim;
  LoadDecodeQueries<N, kFormat>(static_cast<const __nv_bfloat16*>(a.q.data) + at,
                                c.base + Shared::kQueries);
  if (threadIdx.x < N) c.shared->reference[threadIdx.x] = kNoReference;
  WaitCluster();
  GrowRegisters<256 - kProducerRegisters>();
  NamedBarrier(kConsumerBarrier, kConsumerThreads);
  float o[kHalfSlabs][N / 2];
#pragma unroll
  for (int b = 0; b < kHalfSlabs; ++b) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) o[b][i] = 0.0F;
  }
  float2 reference[N / 8];  // of Head(i) and the next, in warpgroup 0
#pragma unroll
  for (int i = 0; i < N / 8; ++i) reference[i] = make_float2(kNoReference, kNoReference);
  float sum = 0.0F;  // warpgroup 1
  int use = 0;
  for (int tile = c.rank; tile < lists.tiles; tile += kClusterBlocks, ++use) {
    const uint32_t keys = stages.Keys(use);
    stages.WaitFull(use);
    if (c.group == 0) {
      const float scale = a.scale * kLog2e;
      float s[N / 2];
      ComputeScores<N>(c, keys, lists.Count(tile), s);
      MoveReferences<N>(c, s, use, scale, reference);
      StoreWeights<N>(c, s, use, scale, reference);
    }
    NamedBarrier(kConsumerBarrier, kConsumerThreads);
    RescaleOutput<N>(c, use, o);
    EnqueueOutput<N>(c, keys, use, o);
    if (c.group == 1) AddWeights<N>(c, use, sum);
    WgmmaWait<0>();
    stages.Release(use);
  }
  AllowNextKernel();
  DecodeTotals<N>& totals = c.shared->totals;
  totals.WaitPeerReady(c.rank);
  SendToPeer<N>(c, o, sum);
  const float sink = a.sink[first_head + c.thread % N] * kLog2e;
  NamedBarrier(kConsumerBarrier, kConsumerThreads);  // this block's references and sums are there
  WaitBarrier(SharedAddress(&totals.received), 0);
  totals.ComputeFactors(c.rank, c.group, c.thread, sink);
  NamedBarrier(kGroupBarrier + c.group, kWarpgroup);
  __nv_bfloat16* out = static_cast<__nv_bfloat16*>(a.out.data) + row * a.out.stride +
                       int64_t{first_head} * kDecodeHeadDim;
  if (c.rank == 0) {
    MergeColumns<N, kFormat, 0>(c, memory, o, out);
  } else {
    MergeColumns<N, kFormat, kMergeSlabs>(c, memory, o, out);
  }
}

// Grid: (2 * heads / N, rows).
template <int N, KvFormat kFormat>
__global__ void __cluster_dims__(kClusterBlocks, 1, 1) __launch_bounds__(kDecodeThreads, 1)
    DecodeAttention(const __grid_constant__ SparseAttentionArgs a) {
  extern __shared__ __align__(1024) uint8_t memory[];
  RunDecodeBlock<kFormat, DecodeShared<N>, kProducerRegisters>(
      a, memory,
      [&](const RowLists& lists, const auto& stages, const Consumer& c, DecodeShared<N>* shared,
          int64_t row) {
        ConsumeTiles<N, kFormat>(a, lists, TileConsumer<N>(c, shared), stages, row,
                                 static_cast<int>(blockIdx.x) / kClusterBlocks * N, memory);
      });
}

}  // namespace firesteel::sm90
