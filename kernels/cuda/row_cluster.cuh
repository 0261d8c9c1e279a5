// A cluster of blocks that works on one row of a vocabulary: on H200 the eight multiprocessors of a cluster read a row several
// times faster than one does, and exchange what they find through each other's shared memory.
//
// Every entry of the row belongs to one thread, in every pass: quad q (entries 4q .. 4q + 3) to thread q modulo their number.
// What a thread writes of a row it may therefore read back without a barrier; another thread's entries need Sync(). All
// results depend on the row and its length alone. Every thread of the cluster must make the same calls in the same order.
#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "kernels/core/math.h"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/weight_quad.cuh"

namespace firesteel {

// Stores value[0 .. 4) at p, those at or past `count` not. One store where the address allows it.
__device__ inline void StoreF32Quad(float* p, int32_t count, const float value[4]) {
  if (count >= 4 && IsAligned(p, 16)) {
    *reinterpret_cast<float4*>(p) = {value[0], value[1], value[2], value[3]};
    return;
  }
  for (int32_t j = 0; j < 4 && j < count; ++j) p[j] = value[j];
}

class RowCluster {
 public:
  static constexpr int kBlocks = 8;
  static constexpr int kBlockThreads = 512;
  static constexpr int kThreads = kBlocks * kBlockThreads;

  // Waits for the other blocks: their shared memory is in use from here on.
  __device__ RowCluster() : rank_(cooperative_groups::this_cluster().block_rank()) { Sync(); }

  __device__ int32_t thread() const {
    return static_cast<int32_t>(rank_) * kBlockThreads + static_cast<int32_t>(threadIdx.x);
  }
  __device__ bool IsFirst() const { return thread() == 0; }
  // What any thread has written before is visible to all of them behind it.
  __device__ void Sync() const { cooperative_groups::this_cluster().sync(); }

  // Calls use(first, quad) for the quads of this thread, in ascending order; `load(first, quad)` fetches four entries,
  // several times in a row. `use` must not change what a later load reads.
  template <typename Load, typename Use>
  __device__ void ForQuads(int32_t count, Load load, Use use) const {
    constexpr int kInFlight = 4;
    for (int32_t begin = 4 * thread(); begin < count; begin += kInFlight * 4 * kThreads) {
      float quad[kInFlight][4];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (begin + i * 4 * kThreads < count) load(begin + i * 4 * kThreads, quad[i]);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (begin + i * 4 * kThreads < count) use(begin + i * 4 * kThreads, quad[i]);
      }
    }
  }
  // The same over the entries of x one by one: use(index, value).
  template <typename Use>
  __device__ void ForEntries(const float* x, int32_t count, Use use) const {
    ForQuads(
        count, [&](int32_t first, float quad[4]) { LoadF32Quad(x + first, count - first, quad); },
        [&](int32_t first, const float quad[4]) {
#pragma unroll
          for (int32_t j = 0; j < 4; ++j) {
            if (first + j < count) use(first + j, quad[j]);
          }
        });
  }

  // Replaces value[i] by what `op` makes of the value[i] of all threads, in one fixed tree.
  template <int kCount, typename T, typename Op>
  __device__ void Reduce(T (&value)[kCount], Op op) {
    constexpr int kWarps = kBlockThreads / kWarpSize;
    static_assert(kWarps <= kWarpSize && kWarpSize % kWarps == 0, "one warp adds what warps have");
    // Two sets by turns: a block may be a whole reduction ahead of one that still reads.
    __shared__ T of_block[2][kCount][kBlocks];
    __shared__ T of_warp[kCount][kWarps];
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      value[i] = ReduceLanes<kWarpSize>(value[i], op);
      if (lane == 0) of_warp[i][warp] = value[i];
    }
    __syncthreads();
    if (warp == 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const T all = ReduceLanes<kWarps>(of_warp[i][lane % kWarps], op);
        if (lane >= kBlocks) continue;
        *cooperative_groups::this_cluster().map_shared_rank(&of_block[turn_][i][rank_], lane) = all;
      }
    }
    Sync();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      value[i] = of_block[turn_][i][0];
      for (int b = 1; b < kBlocks; ++b) value[i] = op(value[i], of_block[turn_][i][b]);
    }
    turn_ ^= 1;
  }
  template <typename T, typename Op>
  __device__ T Reduce(const T& own, Op op) {
    T value[1] = {own};
    Reduce(value, op);
    return value[0];
  }

 private:
  // Over every kLanes lanes. Any plain type of 4-byte words, so that one tree serves numbers and entries.
  template <int kLanes, typename T, typename Op>
  static __device__ T ReduceLanes(T value, Op op) {
    static_assert(sizeof(T) % 4 == 0);
    for (int step = kLanes / 2; step > 0; step /= 2) {
      uint32_t word[sizeof(T) / 4];
      memcpy(word, &value, sizeof(T));
#pragma unroll
      for (uint32_t& w : word) w = __shfl_xor_sync(0xffffffffU, w, step);
      T other;
      memcpy(&other, word, sizeof(T));
      value = op(value, other);
    }
    return value;
  }

  uint32_t rank_;
  int turn_ = 0;
};

}  // namespace firesteel
