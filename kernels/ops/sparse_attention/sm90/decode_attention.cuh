// Sparse decode attention on Hopper: rows with lists of their own over the window cache and the compressed cache.
//
// A cluster of two thread blocks serves N heads of one row. The row's tiles of 64 keys go to the blocks in turn, whatever
// the batch; each block runs an online softmax over its tiles, then each merges half of the output's columns in block order.
// In a block, 256 threads gather and decode tiles into stages while two warpgroups use them:
//   scores   S^T = K Q^T, 64 keys x N heads, and weights P^T into shared memory: warpgroup 0, or half of the heads each
//   output   each warpgroup: four of the eight 64-wide column blocks of O^T += V^T P^T, in registers
//   sums     warpgroup 1: sums of the rounded weights, so that a constant value comes out as itself
// The reference that weights are relative to moves only when a score passes it by 2^8, to that score's tile's maximum: weights
// stay within bf16's range and the output is rarely rescaled. A head's arithmetic depends on its query and its row's lists alone: not on N, the neighbours or the batch.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "kernels/cuda/early_launch.cuh"
#include "kernels/ops/sparse_attention/sm90/decode_gather.cuh"

namespace firesteel::sm90 {

inline constexpr int kWarpgroup = 128;
inline constexpr int kConsumerThreads = 2 * kWarpgroup;
inline constexpr int kDecodeThreads = kConsumerThreads + kProducerThreads;
inline constexpr float kMaxSlack = 8.0F;             // log2 of the largest weight
inline constexpr float kNoReference = -3.0e38F;      // before the first score
inline constexpr int kHalfSlabs = kDecodeSlabs / 2;  // column blocks of a warpgroup
inline constexpr int kMergeSlabs = kHalfSlabs / 2;   // those of them that its block merges
inline constexpr int kMergeDim = kMergeSlabs * kSlabCols;

// Registers of a producer thread; a consumer thread, which holds 2 N of the output, gets what is left of 256 for the pair.
template <int N, KvFormat kFormat>
constexpr int ProducerRegisters() {
  if (N < 64) return 96;
  return kFormat == KvFormat::kFp8 ? 64 : 56;
}

enum DecodeBarrier { kConsumerBarrier = 1, kGroupBarrier = 2 };  // and 3: a warpgroup each

// Heads are read in pairs: arrays of floats start at multiples of eight bytes.
template <int N>
struct DecodeShared {
  static constexpr int kStages = N <= 16 ? 3 : 2;
  // Warpgroups that compute scores, and heads of each. With few heads two would only read the keys twice.
  static constexpr int kScoreGroups = N <= 32 ? 1 : 2;
  static constexpr int kScoreHeads = N / kScoreGroups;
  // Offsets in bytes. Stage 0 takes what the peer sends at the end, `queries` the block's part of the result.
  static constexpr int kQueries = kStages * kTileBytes;
  static constexpr int kQueryBytes = N * kDecodeHeadDim * 2;
  static constexpr int kWeights = kQueries + kQueryBytes;  // two tiles of P^T, each one slab
  static constexpr int kWeightBytes = N * kSlabRowBytes;
  static constexpr int kFloats = kWeights + 2 * kWeightBytes;
  // Half of the output of all columns, a maximum and two sums a head.
  static constexpr int kPeerBytes = N * (kDecodeHeadDim / 2 + 3) * 4;

  float tile_max[4][N];  // of a score warp's sixteen keys
  float reference[N];    // what weights are relative to, in powers of two
  float
      rescale[2]
             [N];   // factor of what was summed before tile use % 2, if a reference has moved there
  float max[2][N];  // of the cluster's blocks at the end: their references
  float sum[2][N][2];  // the same; two partial sums
  float
      factor[2][2]
            [N];  // a warpgroup's copy: of the block's own output in the result, and of its peer's
  uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t ready;     // the peer has read its stages: eight consumer warps
  uint64_t received;  // the peer's output has come
  bool moved[2][2];   // a reference of the score group has moved before tile use % 2
};

template <int N>
constexpr int DecodeSharedBytes() {
  return DecodeShared<N>::kFloats + static_cast<int>(sizeof(DecodeShared<N>));
}

// What a consumer thread knows of its place.
template <int N>
struct Consumer {
  using Shared = DecodeShared<N>;
  Shared* shared;
  uint32_t base;  // of the dynamic shared memory
  int rank;       // of the block in its cluster
  int warp;       // 0..7, uniform
  int group;      // warpgroup 0 or 1, uniform
  int lane;
  int thread;  // 0..127 within the warpgroup

  // First of the two heads whose accumulators i + 0 and i + 1 (and i + 2, i + 3) this thread holds.
  __device__ __forceinline__ int Head(int i) const { return i * 2 + lane % 4 * 2; }
};

// The block's queries into eight slabs of N rows; asynchronous.
template <int N>
__device__ __forceinline__ void LoadDecodeQueries(const __nv_bfloat16* q, uint32_t slabs) {
#pragma unroll
  for (int n0 = 0; n0 < N; n0 += kConsumerThreads / 64) {
    const int n = n0 + static_cast<int>(threadIdx.x) / 64;
    const int piece = static_cast<int>(threadIdx.x) % 64;
    CopyAsync16(slabs + piece / 8 * N * kSlabRowBytes + SlabOffset(n, piece % 8),
                q + n * kDecodeHeadDim + piece * 8);
  }
}

// S^T = K Q^T of the tile in `keys` for the group's heads, -infinity past the tile's `count` keys.
template <int N, int kHeads>
__device__ __forceinline__ void ComputeScores(const Consumer<N>& c, uint32_t keys, int count,
                                              float (&s)[kHeads / 2]) {
  const uint64_t key_rows = SlabDescriptor(keys);
  const uint64_t queries =
      SlabDescriptor(c.base + DecodeShared<N>::kQueries + c.group * kHeads * kSlabRowBytes);
  WgmmaFence();
#pragma unroll
  for (int slab = 0; slab < kDecodeSlabs; ++slab) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Wgmma<kHeads, false>::Run(s, key_rows + (slab * kTileSlabBytes + k * 32) / 16,
                                queries + (slab * N * kSlabRowBytes + k * 32) / 16, slab + k > 0);
    }
  }
  WgmmaCommit();
  WgmmaWait<0>();
  if (count == kTileKeys) return;
  const int key = c.warp % 4 * 16 + c.lane / 4;
#pragma unroll
  for (int i = 0; i < kHeads / 2; i += 4) {
    if (key >= count) s[i] = s[i + 1] = -INFINITY;
    if (key + 8 >= count) s[i + 2] = s[i + 3] = -INFINITY;
  }
}

// Moves the references of heads with a score above their limit. Whether a head's moves depends on its own scores alone.
template <int N, int kHeads>
__device__ __forceinline__ void MoveReferences(const Consumer<N>& c, const float (&s)[kHeads / 2],
                                               int use, float scale,
                                               float2 (&reference)[kHeads / 8]) {
  bool above = false;
#pragma unroll
  for (int i = 0; i < kHeads / 2; i += 4) {
    above |= fmaxf(s[i], s[i + 2]) * scale > reference[i / 4].x + kMaxSlack;
    above |= fmaxf(s[i + 1], s[i + 3]) * scale > reference[i / 4].y + kMaxSlack;
  }
  const bool moved = NamedBarrierAny(kGroupBarrier + c.group, kWarpgroup, above);
  if (c.thread == 0) c.shared->moved[use % 2][c.group] = moved;
  if (!moved) return;
  const int first = c.group * kHeads;
#pragma unroll
  for (int i = 0; i < kHeads / 2; i += 4) {
    float m0 = fmaxf(s[i], s[i + 2]);
    float m1 = fmaxf(s[i + 1], s[i + 3]);
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      m0 = fmaxf(m0, __shfl_xor_sync(0xffffffffU, m0, step));
      m1 = fmaxf(m1, __shfl_xor_sync(0xffffffffU, m1, step));
    }
    if (c.lane < 4) {
      *reinterpret_cast<float2*>(&c.shared->tile_max[c.warp % 4][first + c.Head(i)]) =
          make_float2(m0, m1);
    }
  }
  NamedBarrier(kGroupBarrier + c.group, kWarpgroup);
  if (c.thread < kHeads) {
    const int n = first + c.thread;
    float m = c.shared->tile_max[0][n];
#pragma unroll
    for (int w = 1; w < 4; ++w) m = fmaxf(m, c.shared->tile_max[w][n]);
    m *= scale;
    const float old = c.shared->reference[n];
    const bool moves = m > old + kMaxSlack;
    c.shared->rescale[use % 2][n] = moves ? Exp2(old - m) : 1.0F;
    if (moves) c.shared->reference[n] = m;
  }
  NamedBarrier(kGroupBarrier + c.group, kWarpgroup);
#pragma unroll
  for (int i = 0; i < kHeads / 2; i += 4) {
    reference[i / 4] = *reinterpret_cast<const float2*>(&c.shared->reference[first + c.Head(i)]);
  }
}

// P^T of use `use` from the group's scores.
template <int N, int kHeads>
__device__ __forceinline__ void StoreWeights(const Consumer<N>& c, const float (&s)[kHeads / 2],
                                             int use, float scale,
                                             const float2 (&reference)[kHeads / 8]) {
  using Shared = DecodeShared<N>;
  const uint32_t weights =
      c.base + Shared::kWeights + use % 2 * Shared::kWeightBytes + c.group * kHeads * kSlabRowBytes;
#pragma unroll
  for (int i = 0; i < kHeads / 2; i += 4) {
    const float2 m = reference[i / 4];
    // Eight heads by sixteen keys: two 8x8 tiles side by side in the slab row of each head.
    const uint32_t at = weights + SlabOffset(i * 2 + c.lane % 8, c.warp % 4 * 2 + c.lane / 8 % 2);
    StoreTransposed2(
        at, PackBf16(Exp2(fmaf(s[i], scale, -m.x)), Exp2(fmaf(s[i + 1], scale, -m.y))),
        PackBf16(Exp2(fmaf(s[i + 2], scale, -m.x)), Exp2(fmaf(s[i + 3], scale, -m.y))));
  }
  FenceSharedForWgmma();
}

// Whether a reference of any of the block's heads has moved before use `use`.
template <int N>
__device__ __forceinline__ bool Moved(const Consumer<N>& c, int use) {
  const bool* moved = c.shared->moved[use % 2];
  return DecodeShared<N>::kScoreGroups == 1 ? moved[0] : moved[0] || moved[1];
}
template <int N>
__device__ __forceinline__ float Rescale(const Consumer<N>& c, int use, int head) {
  const int group = head / DecodeShared<N>::kScoreHeads;
  return c.shared->moved[use % 2][group] ? c.shared->rescale[use % 2][head] : 1.0F;
}

// The output so far times the factors of use `use`.
template <int N>
__device__ __forceinline__ void RescaleOutput(const Consumer<N>& c, int use,
                                              float (&o)[kHalfSlabs][N / 2]) {
  if (!Moved<N>(c, use)) return;
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
    const float even = Rescale<N>(c, use, c.Head(i));
    const float odd = Rescale<N>(c, use, c.Head(i) + 1);
#pragma unroll
    for (int b = 0; b < kHalfSlabs; ++b) {
      o[b][i] *= even;
      o[b][i + 1] *= odd;
      o[b][i + 2] *= even;
      o[b][i + 3] *= odd;
    }
  }
}

// O^T += V^T P^T for the warpgroup's column blocks; asynchronous.
template <int N>
__device__ __forceinline__ void EnqueueOutput(const Consumer<N>& c, uint32_t keys, int use,
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

// Two threads a head add the weights of half a tile each, in order.
template <int N>
__device__ __forceinline__ void AddWeights(const Consumer<N>& c, int use, float& sum) {
  using Shared = DecodeShared<N>;
  if (c.thread >= 2 * N) return;
  const int n = c.thread / 2;
  if (Moved<N>(c, use)) sum *= Rescale<N>(c, use, n);
  const uint8_t* row = reinterpret_cast<const uint8_t*>(c.shared) - Shared::kFloats +
                       Shared::kWeights + use % 2 * Shared::kWeightBytes;
#pragma unroll
  for (int piece = 0; piece < 4; ++piece) {
    const uint4 v = *reinterpret_cast<const uint4*>(row + SlabOffset(n, c.thread % 2 * 4 + piece));
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum += __uint_as_float(words[i] << 16);
      sum += __uint_as_float(words[i] & 0xffff0000U);
    }
  }
}

// Sends column blocks kFirst and kFirst + 1 of the warpgroup's output to the peer's stage 0.
template <int N, int kFirst>
__device__ __forceinline__ void SendColumns(const Consumer<N>& c,
                                            const float (&o)[kHalfSlabs][N / 2], uint32_t peer,
                                            uint32_t received) {
  const uint32_t to = PeerAddress(c.base + threadIdx.x * 16, peer);
#pragma unroll
  for (int b = 0; b < kMergeSlabs; ++b) {
#pragma unroll
    for (int i = 0; i < N / 2; i += 4) {
      const float(&v)[N / 2] = o[kFirst + b];
      StoreAsync4(to + (b * (N / 8) + i / 4) * kConsumerThreads * 16, v[i], v[i + 1], v[i + 2],
                  v[i + 3], received);
    }
  }
}

// Sends the peer's columns of the output, and this block's maxima and sums.
template <int N>
__device__ __forceinline__ void SendToPeer(const Consumer<N>& c,
                                           const float (&o)[kHalfSlabs][N / 2], float sum) {
  const uint32_t peer = static_cast<uint32_t>(c.rank ^ 1);
  const uint32_t received = PeerAddress(SharedAddress(&c.shared->received), peer);
  const auto store = [&](float* place, float value) {
    *place = value;
    StoreAsync(PeerAddress(SharedAddress(place), peer), value, received);
  };
  if (c.group == 0 && c.thread < N) {
    store(&c.shared->max[c.rank][c.thread], c.shared->reference[c.thread]);
  }
  if (c.group == 1 && c.thread < 2 * N) {
    store(&c.shared->sum[c.rank][c.thread / 2][c.thread % 2], sum);
  }
  if (c.rank == 0) {
    SendColumns<N, kMergeSlabs>(c, o, peer, received);
  } else {
    SendColumns<N, 0>(c, o, peer, received);
  }
}

// The factors of both blocks' outputs in the result, with the sink in the denominator.
template <int N>
__device__ __forceinline__ void MergeFactors(const Consumer<N>& c, float sink) {
  if (c.thread >= N) return;
  const int n = c.thread;
  const float keys_max = fmaxf(c.shared->max[0][n], c.shared->max[1][n]);
  const float top = fmaxf(keys_max, sink);
  float first = 0.0F;
  float second = 0.0F;
  // An infinite sink leaves nothing to the keys, and so does a list without any.
  if (keys_max != kNoReference && sink != INFINITY) {
    first = Exp2(c.shared->max[0][n] - top);
    second = Exp2(c.shared->max[1][n] - top);
    const float total = Exp2(sink - top) +
                        first * (c.shared->sum[0][n][0] + c.shared->sum[0][n][1]) +
                        second * (c.shared->sum[1][n][0] + c.shared->sum[1][n][1]);
    first /= total;
    second /= total;
  }
  c.shared->factor[c.group][c.rank][n] = first;
  c.shared->factor[c.group][c.rank ^ 1][n] = second;
}

// Merges column blocks kFirst and kFirst + 1 of the warpgroup with the peer's and stores them.
template <int N, int kFirst>
__device__ __forceinline__ void MergeColumns(const Consumer<N>& c, uint8_t* memory,
                                             const float (&o)[kHalfSlabs][N / 2],
                                             __nv_bfloat16* out) {
  constexpr int kRowBytes = kMergeDim * 2;
  uint8_t* rows = memory + DecodeShared<N>::kQueries + c.group * N * kRowBytes;
  const uint32_t rows_at = SharedAddress(rows);
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
    const float2 own = *reinterpret_cast<const float2*>(&c.shared->factor[c.group][0][c.Head(i)]);
    const float2 other = *reinterpret_cast<const float2*>(&c.shared->factor[c.group][1][c.Head(i)]);
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
  constexpr int kPieces = kRowBytes / 16;
  __nv_bfloat16* to = out + (c.group * kHalfSlabs + kFirst) * kSlabCols;
#pragma unroll
  for (int i = c.thread; i < N * kPieces; i += kWarpgroup) {
    const int n = i / kPieces;
    const int piece = i % kPieces;
    *reinterpret_cast<uint4*>(to + n * kDecodeHeadDim + piece * 8) =
        *reinterpret_cast<const uint4*>(rows + n * kRowBytes + ((piece ^ (n & 7)) << 4));
  }
}

template <int N, int kRegisters>
__device__ __forceinline__ void ConsumeTiles(const SparseAttentionArgs& a, const RowLists& lists,
                                             const Consumer<N>& c,
                                             const TileStages<DecodeShared<N>::kStages>& stages,
                                             int64_t row, int first_head, uint8_t* memory) {
  using Shared = DecodeShared<N>;
  const int64_t at = row * a.q.stride + int64_t{first_head} * kDecodeHeadDim;
  LoadDecodeQueries<N>(static_cast<const __nv_bfloat16*>(a.q.data) + at, c.base + Shared::kQueries);
  if (threadIdx.x < N) c.shared->reference[threadIdx.x] = kNoReference;
  WaitCluster();
  GrowRegisters<kRegisters>();
  asm volatile("cp.async.wait_all;\n" ::: "memory");
  FenceSharedForWgmma();
  NamedBarrier(kConsumerBarrier, kConsumerThreads);
  float o[kHalfSlabs][N / 2];
#pragma unroll
  for (int b = 0; b < kHalfSlabs; ++b) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) o[b][i] = 0.0F;
  }
  constexpr int kHeads = Shared::kScoreHeads;
  float2 reference[kHeads / 8];  // of Head(i) and the next of the group's
#pragma unroll
  for (int i = 0; i < kHeads / 8; ++i) reference[i] = make_float2(kNoReference, kNoReference);
  float sum = 0.0F;  // warpgroup 1, thread 2 n + half: of head n
  int use = 0;
  for (int tile = c.rank; tile < lists.tiles; tile += kClusterBlocks, ++use) {
    const uint32_t keys = stages.Keys(use);
    stages.WaitFull(use);
    if (c.group < Shared::kScoreGroups) {
      const float scale = a.scale * kLog2e;
      float s[kHeads / 2];
      ComputeScores<N, kHeads>(c, keys, lists.Count(tile), s);
      MoveReferences<N, kHeads>(c, s, use, scale, reference);
      StoreWeights<N, kHeads>(c, s, use, scale, reference);
    }
    NamedBarrier(kConsumerBarrier, kConsumerThreads);
    RescaleOutput<N>(c, use, o);
    EnqueueOutput<N>(c, keys, use, o);
    if (c.group == 1) AddWeights<N>(c, use, sum);
    WgmmaWait<0>();
    stages.Release(use);
  }
  AllowNextKernel();
  __syncwarp();
  if (c.lane == 0) {
    ArrivePeer(PeerAddress(SharedAddress(&c.shared->ready), static_cast<uint32_t>(c.rank ^ 1)));
  }
  WaitBarrier(SharedAddress(&c.shared->ready), 0);
  SendToPeer<N>(c, o, sum);
  const float sink = a.sink[first_head + c.thread % N] * kLog2e;
  NamedBarrier(kConsumerBarrier, kConsumerThreads);  // this block's maxima and sums are there
  WaitBarrier(SharedAddress(&c.shared->received), 0);
  MergeFactors<N>(c, sink);
  NamedBarrier(kGroupBarrier + c.group, kWarpgroup);
  __nv_bfloat16* out = static_cast<__nv_bfloat16*>(a.out.data) + row * a.out.stride +
                       int64_t{first_head} * kDecodeHeadDim;
  if (c.rank == 0) {
    MergeColumns<N, 0>(c, memory, o, out);
  } else {
    MergeColumns<N, kMergeSlabs>(c, memory, o, out);
  }
}

// Grid: (2 * heads / N, rows).
template <int N, KvFormat kFormat>
__global__ void __cluster_dims__(kClusterBlocks, 1, 1) __launch_bounds__(kDecodeThreads, 1)
    DecodeAttention(const __grid_constant__ SparseAttentionArgs a) {
  using Shared = DecodeShared<N>;
  constexpr int kProducerRegisters = ProducerRegisters<N, kFormat>();
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared* shared = reinterpret_cast<Shared*>(memory + Shared::kFloats);
  const uint32_t base = SharedAddress(memory);
  const TileStages<Shared::kStages> stages{base, SharedAddress(shared->full),
                                           SharedAddress(shared->empty)};
  if (threadIdx.x == 0) {
    constexpr uint32_t kConsumerWarps = kConsumerThreads / 32;
    for (int i = 0; i < Shared::kStages; ++i) {
      InitBarrier(stages.full + i * 8, kProducerThreads / 32);
      InitBarrier(stages.empty + i * 8, kConsumerWarps);
    }
    InitBarrier(SharedAddress(&shared->ready), kConsumerWarps);
    InitBarrier(SharedAddress(&shared->received), 1);
    FenceBarrierInit();
    ExpectBytes(SharedAddress(&shared->received), Shared::kPeerBytes);
  }
  ArriveCluster();
  WaitForEarlierKernels();
  const int64_t row = blockIdx.y;
  const RowLists lists(a, row);
  if (row >= __ldcg(a.live)) return;
  const int rank = static_cast<int>(ClusterRank());
  // Uniform across a warp: lets the compiler keep descriptors in uniform registers.
  const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x / 32), 0);
  if (warp >= kConsumerThreads / 32) {
    ProduceTiles<kFormat, Shared::kStages, kProducerRegisters>(a, lists, rank, stages);
    return;
  }
  const Consumer<N> consumer{shared,
                             base,
                             rank,
                             warp,
                             warp / 4,
                             static_cast<int>(threadIdx.x) % 32,
                             static_cast<int>(threadIdx.x) % kWarpgroup};
  ConsumeTiles<N, 256 - kProducerRegisters>(
      a, lists, consumer, stages, row, static_cast<int>(blockIdx.x) / kClusterBlocks * N, memory);
}

}  // namespace firesteel::sm90
