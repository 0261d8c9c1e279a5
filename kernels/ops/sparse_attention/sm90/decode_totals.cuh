// What the kernels of sparse decode attention share beside the gathering: the softmax state of a block's heads, and the merge
// of the two blocks of a cluster.
//
// A head's arithmetic is the same in all of them, bit for bit: tiles of 64 keys in turn; weights relative to a reference
// that moves only when a score passes it by 2^8, to that score's tile's maximum, so that weights stay within bf16's range and
// the output is rarely rescaled; sums of the rounded weights, so that a constant value comes out as itself.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/sm90/cluster.cuh"
#include "kernels/cuda/sm90/shared_access.cuh"
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
// Of a head's weights: part t adds columns 8 j + 2 t and 8 j + 2 t + 1 of every tile, which is what a lane holds of a row.
inline constexpr int kSumParts = 4;

enum DecodeBarrier { kConsumerBarrier = 1, kGroupBarrier = 2 };  // and 3: a warpgroup each

// The ends of a cluster's blocks, for `N` heads.
template <int N>
struct DecodeTotals {
  // Bytes that come from the peer: half of the output of all columns, a reference and the sums of each head.
  static constexpr int kPeerBytes = N * (kDecodeHeadDim / 2 + 1 + kSumParts) * 4;

  float reference[2][N];       // of either block
  float sum[2][N][kSumParts];  // the same
  float
      factor[2][2]
            [N];   // a warpgroup's copy: of the block's own output in the result, and of its peer's
  uint64_t ready;  // the peer has read its stages: eight consumer warps
  uint64_t received;  // the peer's output has come

  // By one thread, before the cluster's barrier.
  __device__ __forceinline__ void InitBarriers() {
    InitBarrier(SharedAddress(&ready), kConsumerThreads / 32);
    InitBarrier(SharedAddress(&received), 1);
    FenceBarrierInit();
    ExpectBytes(SharedAddress(&received), kPeerBytes);
  }

  // Tells the peer that this warp no longer reads its stages, and waits until the peer's warps have said so.
  __device__ __forceinline__ void WaitPeerReady(int rank) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      ArrivePeer(PeerAddress(SharedAddress(&ready), static_cast<uint32_t>(rank ^ 1)));
    }
    WaitBarrier(SharedAddress(&ready), 0);
  }

  // Writes a value of the block `rank` here and at its peer. `place` is in this object.
  __device__ __forceinline__ void Publish(int rank, float* place, float value) {
    const uint32_t peer = static_cast<uint32_t>(rank ^ 1);
    *place = value;
    StoreAsync(PeerAddress(SharedAddress(place), peer), value,
               PeerAddress(SharedAddress(&received), peer));
  }

  // The factors of both blocks' outputs in the result, with the sink in the denominator. Thread n of each warpgroup: head n.
  __device__ __forceinline__ void ComputeFactors(int rank, int group, int n, float sink) {
    if (n >= N) return;
    const float keys_max = fmaxf(reference[0][n], reference[1][n]);
    const float top = fmaxf(keys_max, sink);
    float first = 0.0F;
    float second = 0.0F;
    // An infinite sink leaves nothing to the keys, and so does a list without any.
    if (keys_max != kNoReference && sink != INFINITY) {
      first = Exp2(reference[0][n] - top);
      second = Exp2(reference[1][n] - top);
      const float total = Exp2(sink - top) + first * Sum(0, n) + second * Sum(1, n);
      first /= total;
      second /= total;
    }
    factor[group][rank][n] = first;
    factor[group][rank ^ 1][n] = second;
  }

 private:
  __device__ __forceinline__ float Sum(int rank, int n) const {
    const float(&part)[kSumParts] = sum[rank][n];
    return (part[0] + part[1]) + (part[2] + part[3]);
  }
};

// What a consumer thread knows of its place.
struct Consumer {
  uint32_t base;  // of the dynamic shared memory
  int rank;       // of the block in its cluster
  int warp;       // 0..7, uniform
  int group;      // warpgroup 0 or 1, uniform
  int lane;
  int thread;  // 0..127 within the warpgroup

  // REQUIRES: `warp` is uniform across the warp, and known to be so.
  __device__ __forceinline__ Consumer(uint32_t base, int rank, int warp)
      : base(base),
        rank(rank),
        warp(warp),
        group(warp / 4),
        lane(static_cast<int>(threadIdx.x) % 32),
        thread(static_cast<int>(threadIdx.x) % kWarpgroup) {}
};

// Queries of N heads into eight slabs of N rows, in the tiles' order of columns, by the consumers.
template <int N, KvFormat kFormat>
__device__ __forceinline__ void LoadDecodeQueries(const __nv_bfloat16* q, uint32_t slabs) {
  constexpr int kStep = kConsumerThreads / 64;
  const int piece = static_cast<int>(threadIdx.x) % 64;
  const int first = static_cast<int>(threadIdx.x) / 64;
  uint4 v[N / kStep];
#pragma unroll
  for (int i = 0; i < N / kStep; ++i) {
    v[i] = LoadStreaming(q + (first + i * kStep) * kDecodeHeadDim + piece * 8);
  }
#pragma unroll
  for (int i = 0; i < N / kStep; ++i) {
    StoreShared16(slabs + piece / 8 * N * kSlabRowBytes + SlabOffset(first + i * kStep, piece % 8),
                  IsSwappedSlab<kFormat>(piece / 8) ? SwapMiddles(v[i]) : v[i]);
  }
  FenceSharedForWgmma();
}

// Sends kCount registers of each consumer thread to the same thread of the peer, where they lie in stage 0 in pieces of four.
template <int kCount>
__device__ __forceinline__ void SendRegisters(const float* values, uint32_t to, uint32_t received) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    StoreAsync4(to + (i / 4) * kConsumerThreads * 16, values[i], values[i + 1], values[i + 2],
                values[i + 3], received);
  }
}

// The warpgroup's merged columns, of the slabs from `first_slab` on, to the output: from `rows`, N rows of kMergeDim swizzled in
// shared memory.
template <int N, KvFormat kFormat>
__device__ __forceinline__ void StoreMergedRows(const Consumer& c, const uint8_t* rows,
                                                int first_slab, __nv_bfloat16* out) {
  constexpr int kRowBytes = kMergeDim * 2;
  constexpr int kPieces = kRowBytes / 16;
#pragma unroll
  for (int i = c.thread; i < N * kPieces; i += kWarpgroup) {
    const int n = i / kPieces;
    const int piece = i % kPieces;
    const uint4 v =
        *reinterpret_cast<const uint4*>(rows + n * kRowBytes + ((piece ^ (n & 7)) << 4));
    *reinterpret_cast<uint4*>(out + n * kDecodeHeadDim + first_slab * kSlabCols + piece * 8) =
        IsSwappedSlab<kFormat>(first_slab + piece / 8) ? SwapMiddles(v) : v;
  }
}

// What every block of these kernels does: its barriers, its place, its producers' part; `consume(lists, stages, consumer,
// shared, row)` is the consumers'. Grid: (2 * heads / heads of a block, rows). `Shared` lies behind its kFloats in `memory`.
template <KvFormat kFormat, typename Shared, int kProducerRegisters, typename Consume>
__device__ __forceinline__ void RunDecodeBlock(const SparseAttentionArgs& a, uint8_t* memory,
                                               const Consume& consume) {
  Shared* shared = reinterpret_cast<Shared*>(memory + Shared::kFloats);
  const uint32_t base = SharedAddress(memory);
  const TileStages<Shared::kStages> stages{base, SharedAddress(shared->full),
                                           SharedAddress(shared->empty)};
  if (threadIdx.x == 0) {
    stages.InitBarriers(kConsumerThreads / 32);
    shared->totals.InitBarriers();
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
  consume(lists, stages, Consumer(base, rank, warp), shared, row);
}

}  // namespace firesteel::sm90
