// A cluster of blocks that works on one row of a vocabulary: the eight multiprocessors of a cluster read a row several times
// faster than one does, and exchange what they find through each other's shared memory.
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

  // Waits for the other blocks: their shared memory is in use from here on. REQUIRES: the grid is kBlocks wide, a cluster
  // for every y and z.
  __device__ RowCluster() {
    if (threadIdx.x == 0) {
      for (int turn = 0; turn < 2; ++turn) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(Arrival(turn)) : "memory");
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    Sync();
  }

  __device__ int32_t thread() const {
    return static_cast<int32_t>(blockIdx.x) * kBlockThreads + static_cast<int32_t>(threadIdx.x);
  }
  __device__ bool IsFirst() const { return thread() == 0; }
  // What any thread has written before is visible to all of them behind it.
  __device__ void Sync() const { cooperative_groups::this_cluster().sync(); }

  // Calls use(first, quads) for the quads of this thread, in ascending order; quads[r] holds entries first .. first + 3 of
  // rows[r]. Several are fetched before the first is used, so `use` may change entries that it has been given, and no others.
  template <int kRows, typename Use>
  __device__ void ForQuads(const float* const (&rows)[kRows], int32_t count, Use use) const {
    constexpr int kInFlight = 4 / kRows;
    bool whole = count % 4 == 0;  // every quad is one load
#pragma unroll
    for (int r = 0; r < kRows; ++r) whole = whole && IsAligned(rows[r], 16);
#pragma unroll 1
    for (int32_t begin = 4 * thread(); begin < count; begin += kInFlight * 4 * kThreads) {
      float quad[kInFlight][kRows][4];
      // Without a branch in between, or the loads would wait for each other. Past the end any address serves.
      if (whole) {
#pragma unroll
        for (int i = 0; i < kInFlight * kRows; ++i) {
          const int32_t at = Min(begin + i / kRows * 4 * kThreads, count - 4);
          const float4 v = *reinterpret_cast<const float4*>(rows[i % kRows] + at);
          float* to = quad[i / kRows][i % kRows];
          to[0] = v.x;
          to[1] = v.y;
          to[2] = v.z;
          to[3] = v.w;
        }
      } else {
#pragma unroll
        for (int i = 0; i < kInFlight * kRows; ++i) {
          const int32_t at = begin + i / kRows * 4 * kThreads;
          if (at < count) {
            LoadF32Quad(rows[i % kRows] + at, count - at, quad[i / kRows][i % kRows]);
          }
        }
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
    ForQuads<1>({x}, count, [&](int32_t first, const float(&quad)[1][4]) {
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        if (first + j < count) use(first + j, quad[0][j]);
      }
    });
  }

  // Replaces value[i] by what `op` makes of the value[i] of all threads, in one fixed tree. It orders no other memory.
  template <int kCount, typename T, typename Op>
  __device__ void Reduce(T (&value)[kCount], Op op) {
    constexpr int kWarps = kBlockThreads / kWarpSize;
    static_assert(kWarps <= kWarpSize && kWarpSize % kWarps == 0, "one warp adds what warps have");
    // Two sets by turns: a block may be a whole reduction ahead of one that still reads, and a warp of the one that adds.
    __shared__ T of_block[2][kCount][kBlocks];
    __shared__ T of_warp[2][kCount][kWarps];
    const int turn = calls_ % 2;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      value[i] = ReduceLanes<kWarpSize>(value[i], op);
      if (lane == 0) of_warp[turn][i][warp] = value[i];
    }
    __syncthreads();
    if (warp == 0) {
      if (lane == 0) Expect(turn, static_cast<uint32_t>(kBlocks * sizeof(value)));
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const T all = ReduceLanes<kWarps>(of_warp[turn][i][lane % kWarps], op);
        if (lane < kBlocks) Send(turn, lane, &of_block[turn][i][blockIdx.x], all);
      }
    }
    Await(turn, static_cast<uint32_t>(calls_ / 2 % 2));
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      value[i] = ReduceLanes<kBlocks>(of_block[turn][i][lane % kBlocks], op);
    }
    ++calls_;
  }
  template <typename T, typename Op>
  __device__ T Reduce(const T& own, Op op) {
    T value[1] = {own};
    Reduce(value, op);
    return value[0];
  }

 private:
  static __device__ uint32_t Address(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  }
  // Where the bytes of a turn are counted: a barrier per turn.
  static __device__ uint32_t Arrival(int turn) {
    __shared__ uint64_t arrivals[2];
    return Address(&arrivals[turn]);
  }
  static __device__ void Expect(int turn, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(Arrival(turn)),
                 "r"(bytes)
                 : "memory");
  }
  static __device__ void Await(int turn, uint32_t parity) {
    asm volatile(
        "{ .reg .pred done;\n"
        "wait%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra wait%=; }" ::"r"(Arrival(turn)),
        "r"(parity)
        : "memory");
  }
  // Stores `value` at `place` of block `block`, which counts its bytes. Plain stores and a barrier of the cluster would do, but
  // that barrier also waits for every global access, several times as long.
  template <typename T>
  static __device__ void Send(int turn, int block, T* place, const T& value) {
    uint32_t word[sizeof(T) / 4];
    memcpy(word, &value, sizeof(T));
    uint32_t to;
    uint32_t arrival;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(Address(place)), "r"(block));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(arrival) : "r"(Arrival(turn)), "r"(block));
#pragma unroll
    for (uint32_t w = 0; w < sizeof(T) / 4; ++w) {
      asm volatile(
          "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
              to + 4 * w),
          "r"(word[w]), "r"(arrival)
          : "memory");
    }
  }
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

  int calls_ = 0;
};

}  // namespace firesteel
