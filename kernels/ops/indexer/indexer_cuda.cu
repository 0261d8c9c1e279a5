// Scores of a few rows at a time go to scratch, then one block per row keeps the best. More rows than the scratch holds
// are taken in turns; a row's result does not depend on its turn.
#include <cmath>

#include "kernels/core/math.h"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/row_access.cuh"
#include "kernels/ops/indexer/indexer.h"
#include "kernels/ops/kv_decode.cuh"

namespace firesteel {
namespace {

constexpr int kScoreWarps = 8;
constexpr int kScoreThreads = kScoreWarps * kWarpSize;
constexpr int kTileKeys = kWarpSize;
constexpr int kPad = 4;  // keeps 16-byte reads of a column free of bank conflicts
constexpr int kChooseThreads = 1024;
constexpr int kRadixBits = 8;
constexpr int kRadix = 1 << kRadixBits;

__device__ int32_t EntryRow(const IndexerArgs& a, int32_t slot, int32_t entry) {
  const int32_t* table =
      a.slots.block_table[a.context_group] + int64_t{slot} * a.slots.max_blocks[a.context_group];
  return table[entry / a.entries_per_block] * a.entries_per_block + entry % a.entries_per_block;
}

// Rows that choose at all: those that see more entries than they may keep.
__device__ bool Chooses(const IndexerArgs& a, int64_t row) {
  return row < Min(*a.live, a.rows) && a.visible[row] > a.top_k;
}

// Grid: (blocks that share the entries, rows of this turn). Dynamic shared memory: q [heads, width], then keys
// [kTileKeys, width + kPad]. A warp takes every eighth head, a lane one entry of the tile.
__global__ void __launch_bounds__(kScoreThreads) ScoreKernel(IndexerArgs a, int32_t first_row) {
  extern __shared__ float4 memory[];
  __shared__ float partial[kScoreWarps][kTileKeys];
  const int64_t row = first_row + static_cast<int64_t>(blockIdx.y);
  if (!Chooses(a, row)) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  const int32_t width = a.keys.width;
  const int32_t visible = a.visible[row];
  const int32_t slot = a.meta.slot[row];
  float* q = reinterpret_cast<float*>(memory);
  float* keys = q + a.heads * width;
  for (int32_t i = thread; i < a.heads * width; i += kScoreThreads) q[i] = LoadElement(a.q, row, i);
  const float scale = 1.0F / sqrtf(static_cast<float>(width) * static_cast<float>(a.heads));
  const int32_t quads = width / 4;
  for (int32_t first = static_cast<int32_t>(blockIdx.x) * kTileKeys; first < visible;
       first += static_cast<int32_t>(gridDim.x) * kTileKeys) {
    const int32_t count = Min(kTileKeys, visible - first);
    __syncthreads();  // the last tile has been read, and q is there
    for (int32_t i = thread; i < count * quads; i += kScoreThreads) {
      const int32_t column = i % quads * 4;
      *reinterpret_cast<float4*>(keys + i / quads * (width + kPad) + column) =
          LoadKvQuad(a.keys, EntryRow(a, slot, first + i / quads), column);
    }
    __syncthreads();
    const float* key = keys + Min(lane, count - 1) * (width + kPad);
    float total = 0.0F;
    for (int32_t h = warp; h < a.heads; h += kScoreWarps) {
      float dot = 0.0F;
      for (int32_t c = 0; c < width; c += 4) {
        const float4 x = *reinterpret_cast<const float4*>(q + h * width + c);
        const float4 k = *reinterpret_cast<const float4*>(key + c);
        dot += x.x * k.x;
        dot += x.y * k.y;
        dot += x.z * k.z;
        dot += x.w * k.w;
      }
      total += a.weight[row * a.heads + h] * scale * Max(dot, 0.0F);
    }
    partial[warp][lane] = total;
    __syncthreads();
    if (warp != 0 || lane >= count) continue;
    float sum = 0.0F;
    for (int w = 0; w < kScoreWarps; ++w) sum += partial[w][lane];
    a.scores[(row - first_row) * a.max_entries + first + lane] = sum;
  }
}

// Larger scores have larger keys. NaN ranks last, as -infinity, and -0 equals 0.
__device__ uint32_t OrderKey(float score) {
  if (isnan(score)) score = -INFINITY;
  const uint32_t bits = FloatBits(score + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

struct Threshold {
  uint32_t key;     // the smallest kept key
  int32_t of_ties;  // how many entries with exactly this key are kept, from the lowest entry on
};

// The top_k-th largest key by four rounds of counting digits, the highest first.
__device__ Threshold FindThreshold(const float* scores, int32_t visible, int32_t top_k) {
  __shared__ int32_t count[kRadix];
  __shared__ uint32_t prefix;
  __shared__ int32_t wanted;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    prefix = 0;
    wanted = top_k;
  }
  for (int shift = 32 - kRadixBits; shift >= 0; shift -= kRadixBits) {
    if (thread < kRadix) count[thread] = 0;
    __syncthreads();
    const uint32_t known = shift == 32 - kRadixBits ? 0U : ~0U << (shift + kRadixBits);
    for (int32_t j = thread; j < visible; j += kChooseThreads) {
      const uint32_t key = OrderKey(scores[j]);
      if ((key & known) == prefix) atomicAdd(&count[key >> shift & (kRadix - 1)], 1);
    }
    __syncthreads();
    if (thread == 0) {
      int32_t left = wanted;
      int digit = kRadix - 1;
      for (; digit > 0 && count[digit] < left; --digit) left -= count[digit];
      wanted = left;
      prefix |= static_cast<uint32_t>(digit) << shift;
    }
    __syncthreads();
  }
  return {prefix, wanted};
}

// Exclusive prefix sums of two flags over the block; *totals are the block's sums.
__device__ int2 ScanFlags(bool first, bool second, int2* totals) {
  __shared__ int2 warps[kChooseThreads / kWarpSize];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const unsigned below = (1U << lane) - 1U;
  const unsigned a = __ballot_sync(0xffffffffU, first);
  const unsigned b = __ballot_sync(0xffffffffU, second);
  __syncthreads();
  if (lane == 0) warps[warp] = {__popc(a), __popc(b)};
  __syncthreads();
  int2 before{__popc(a & below), __popc(b & below)};
  *totals = {0, 0};
  for (int w = 0; w < kChooseThreads / kWarpSize; ++w) {
    if (w < warp) before = {before.x + warps[w].x, before.y + warps[w].y};
    *totals = {totals->x + warps[w].x, totals->y + warps[w].y};
  }
  return before;
}

// One block per row of this turn.
__global__ void __launch_bounds__(kChooseThreads) ChooseKernel(IndexerArgs a, int32_t first_row) {
  const int64_t row = first_row + static_cast<int64_t>(blockIdx.x);
  if (row >= Min(*a.live, a.rows)) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t visible = a.visible[row];
  const int32_t slot = a.meta.slot[row];
  const int32_t kept = Min(visible, a.top_k);
  int32_t* out = a.out.index + row * a.out.width;
  int32_t* chosen = a.chosen == nullptr ? nullptr : a.chosen + row * a.out.width;
  const auto keep = [&](int32_t place, int32_t entry) {
    out[place] = EntryRow(a, slot, entry);
    if (chosen != nullptr) chosen[place] = entry;
  };
  if (thread == 0) a.out.valid[row] = kept;
  for (int32_t i = kept + thread; chosen != nullptr && i < a.out.width; i += kChooseThreads) {
    chosen[i] = -1;
  }
  if (visible <= a.top_k) {
    for (int32_t j = thread; j < visible; j += kChooseThreads) keep(j, j);
    return;
  }
  const float* scores = a.scores + (row - first_row) * a.max_entries;
  const Threshold threshold = FindThreshold(scores, visible, a.top_k);
  // Entries in ascending order: an entry is kept when it lies above the threshold, or is one of the first of its ties.
  int32_t placed = 0;
  int32_t ties = 0;
  for (int32_t first = 0; first < visible; first += kChooseThreads) {
    const int32_t j = first + thread;
    const uint32_t key = j < visible ? OrderKey(scores[j]) : 0U;
    const bool above = j < visible && key > threshold.key;
    const bool tie = j < visible && key == threshold.key;
    int2 totals;
    const int2 before = ScanFlags(above, tie, &totals);
    const int32_t ties_before = Min(ties + before.y, threshold.of_ties);
    if (above || (tie && ties + before.y < threshold.of_ties)) {
      keep(placed + before.x + ties_before, j);
    }
    placed += totals.x;
    ties += totals.y;
  }
}

}  // namespace

void IndexerCuda(Stream& stream, const IndexerArgs& a) {
  const size_t shared =
      (static_cast<size_t>(a.heads) * static_cast<size_t>(a.keys.width) +
       static_cast<size_t>(kTileKeys) * static_cast<size_t>(a.keys.width + kPad)) *
      sizeof(float);
  cudaFuncSetAttribute(ScoreKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(shared));
  // Enough blocks for a long context; those without entries return at once.
  constexpr int32_t kMaxBlocksPerRow = 128;
  const int32_t blocks = Max(1, Min(kMaxBlocksPerRow, CeilDiv(a.max_entries, kTileKeys)));
  for (int32_t first = 0; first < a.rows; first += a.score_rows) {
    const int32_t rows = Min(a.score_rows, a.rows - first);
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(rows));
    ScoreKernel<<<grid, kScoreThreads, shared, CudaStreamOf(stream)>>>(a, first);
    ChooseKernel<<<static_cast<unsigned>(rows), kChooseThreads, 0, CudaStreamOf(stream)>>>(a,
                                                                                           first);
  }
}

}  // namespace firesteel
