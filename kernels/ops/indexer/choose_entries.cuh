// The exact choice of a row's best entries from their scores, by one block.
//
// The threshold is found by counting digits of the scores' order keys, the highest first; what is kept is then listed in
// ascending order, ties from the lowest entry on. Counts are integers, so the order of their additions does not matter.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/core/float_codec.h"
#include "kernels/core/math.h"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/ops/indexer/entry_row.cuh"
#include "kernels/ops/indexer/indexer.h"

namespace firesteel::choose_entries {

inline constexpr int32_t kThreads = 1024;
inline constexpr int32_t kWarps = kThreads / kWarpSize;
inline constexpr int32_t kRadixBits = 11;
inline constexpr int32_t kRadix = 1 << kRadixBits;
static_assert(kRadix == 2 * kThreads && kWarps == kWarpSize);

// The order keys of a row. A warp owns a range of entries, and a lane every 32nd of it. Where they are known to fit, they stay
// in registers, kHeld a thread.
template <int32_t kHeld>
class RowKeys {
 public:
  __device__ RowKeys(const float* scores, int32_t visible)
      : keys_(reinterpret_cast<const uint32_t*>(scores)) {
    const int32_t warp = static_cast<int32_t>(threadIdx.x) / kWarpSize;
    const int32_t range = RoundUp(CeilDiv(visible, kWarps), kWarpSize);
    begin_ = Min(warp * range, visible);
    end_ = Min(begin_ + range, visible);
    if constexpr (kHeld > 0) Fetch(begin_);
  }
  // use(entry, key) for whole warps, in ascending order; the key is 0 where there is no entry.
  template <typename Use>
  __device__ void ForEach(Use use) {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpSize;
    for (int32_t first = begin_; first < end_; first += kFetched * kWarpSize) {
      if constexpr (kHeld == 0) Fetch(first);
#pragma unroll
      for (int32_t i = 0; i < kFetched; ++i) {
        if (first + i * kWarpSize >= end_) return;
        use(first + i * kWarpSize + lane, key_[i]);
      }
    }
  }

 private:
  static constexpr int32_t kFetched = kHeld > 0 ? kHeld : 8;
  __device__ void Fetch(int32_t first) {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpSize;
#pragma unroll
    for (int32_t i = 0; i < kFetched; ++i) {
      const int32_t entry = first + i * kWarpSize + lane;
      key_[i] = entry < end_ ? __ldcg(keys_ + entry) : 0;
    }
  }

  const uint32_t* keys_;
  int32_t begin_;
  int32_t end_;
  uint32_t key_[kFetched];
};

// The sum of `value` over the threads before this one.
__device__ inline int32_t SumBefore(int32_t value) {
  __shared__ int32_t of_warp[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  int32_t inclusive = value;
  for (int step = 1; step < kWarpSize; step *= 2) {
    const int32_t other = __shfl_up_sync(0xffffffffU, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  __syncthreads();  // an earlier call's sums have been read
  if (lane == kWarpSize - 1) of_warp[warp] = inclusive;
  __syncthreads();
  return inclusive - value + WarpReduce(lane < warp ? of_warp[lane] : 0, AddOp{});
}

struct Threshold {
  uint32_t key;     // the smallest kept key
  int32_t of_ties;  // how many entries with exactly this key are kept, from the lowest entry on
};

// The top_k-th largest key. `count` [kRadix] is shared memory. REQUIRES: there are more keys.
template <typename Keys>
__device__ Threshold FindThreshold(Keys& keys, int32_t top_k, int32_t* count) {
  __shared__ Threshold found;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  uint32_t prefix = 0;
  uint32_t known = 0;  // bits of the key that the prefix holds
  int32_t wanted = top_k;
#pragma unroll 1
  for (int32_t top = 32; top > 0;) {
    const int32_t shift = Max(top - kRadixBits, 0);
    const uint32_t mask = (1U << (top - shift)) - 1U;
    count[thread] = 0;
    count[thread + kThreads] = 0;
    __syncthreads();
    keys.ForEach([&](int32_t, uint32_t key) {
      const bool counts = key != 0 && ((key ^ prefix) & known) == 0;
      const uint32_t digit = key >> shift & mask;
      // Scores crowd together, zeros above all: a warp of one digit adds once.
      const uint32_t first = __shfl_sync(0xffffffffU, digit, 0);
      if (__all_sync(0xffffffffU, counts && digit == first)) {
        if (thread % kWarpSize == 0) atomicAdd(&count[digit], kWarpSize);
      } else if (counts) {
        atomicAdd(&count[digit], 1);
      }
    });
    __syncthreads();
    // From the largest digit down, two a thread.
    const int32_t upper = kRadix - 1 - 2 * thread;
    const int32_t of_upper = count[upper];
    const int32_t of_both = of_upper + count[upper - 1];
    const int32_t before = SumBefore(of_both);
    if (before < wanted && wanted <= before + of_both) {
      const bool is_upper = wanted <= before + of_upper;
      found.key = prefix | static_cast<uint32_t>(is_upper ? upper : upper - 1) << shift;
      found.of_ties = wanted - before - (is_upper ? 0 : of_upper);
    }
    __syncthreads();
    prefix = found.key;
    wanted = found.of_ties;
    known |= mask << shift;
    top = shift;
  }
  return {prefix, wanted};
}

// Where the block lists what it keeps.
struct KeptList {
  const IndexerArgs& a;
  int64_t row;
  int32_t slot;
  int32_t*
      near;  // [kRadix] in shared memory: places are looked up for all entries at once, where the list fits

  __device__ void Put(int32_t place, int32_t entry) const {
    a.out.index[row * a.out.width + place] = EntryRow(a, slot, entry);
    if (a.chosen != nullptr) a.chosen[row * a.out.width + place] = entry;
  }
  __device__ void Keep(int32_t place, int32_t entry) const {
    if (a.top_k > kRadix) return Put(place, entry);
    near[place] = entry;
  }
  // By the whole block, once all are kept.
  __device__ void Finish(int32_t kept) const {
    if (a.top_k > kRadix) return;
    __syncthreads();
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < kept; i += kThreads) Put(i, near[i]);
  }
};

// An entry is kept when it lies above the threshold, or is one of the first of its ties.
template <typename Keys>
__device__ void ListKept(Keys& keys, const Threshold& threshold, const KeptList& list) {
  __shared__ int32_t warp_above[kWarps];
  __shared__ int32_t warp_ties[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  int32_t above = 0;
  int32_t ties = 0;
  keys.ForEach([&](int32_t, uint32_t key) {
    above += key > threshold.key ? 1 : 0;
    ties += key == threshold.key ? 1 : 0;
  });
  above = WarpReduce(above, AddOp{});
  ties = WarpReduce(ties, AddOp{});
  if (lane == 0) {
    warp_above[warp] = above;
    warp_ties[warp] = ties;
  }
  __syncthreads();
  above = WarpReduce(lane < warp ? warp_above[lane] : 0, AddOp{});
  ties = WarpReduce(lane < warp ? warp_ties[lane] : 0, AddOp{});
  const unsigned below = (1U << lane) - 1U;
  keys.ForEach([&](int32_t entry, uint32_t key) {
    const unsigned larger = __ballot_sync(0xffffffffU, key > threshold.key);
    const unsigned equal = __ballot_sync(0xffffffffU, key == threshold.key);
    if ((larger | equal) == 0) return;
    const int32_t own_above = above + __popc(larger & below);
    const int32_t own_ties = ties + __popc(equal & below);
    if (key > threshold.key || (key == threshold.key && own_ties < threshold.of_ties)) {
      list.Keep(own_above + Min(own_ties, threshold.of_ties), entry);
    }
    above += __popc(larger);
    ties += __popc(equal);
  });
}

}  // namespace firesteel::choose_entries
