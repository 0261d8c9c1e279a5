#include <cfloat>

#include "kernels/core/math.h"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/ops/linear/linear_tile.cuh"
#include "kernels/ops/moe/expert_stream.cuh"
#include "kernels/ops/moe/moe.h"

namespace firesteel {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kRouteWarps = 2;
constexpr int kRouteThreads = kRouteWarps * kWarpSize;

// sqrt(log(1 + e^x)) without overflow for large x.
__device__ float SqrtSoftplus(float x) { return sqrtf(x > 20.0F ? x : log1pf(expf(x))); }

struct Candidate {
  float value;
  int32_t expert;
};

// The larger value, then the lower expert. NaN ranks below everything, so that a broken row still gets distinct experts.
__device__ Candidate Better(Candidate a, Candidate b) {
  const bool take_b = b.value > a.value || (b.value == a.value && b.expert < a.expert);
  return take_b ? b : a;
}

__device__ Candidate WarpBest(Candidate c) {
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    c = Better(c, {__shfl_xor_sync(0xffffffffU, c.value, step),
                   __shfl_xor_sync(0xffffffffU, c.expert, step)});
  }
  return c;
}

// Weights of a row's experts from their logits; lane k has expert k of at most a warp's.
__device__ void StoreRoute(const MoeRouteArgs& a, int64_t row, int32_t expert) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const bool mine = lane < a.top_k;
  const float value = mine ? SqrtSoftplus(__ldcg(a.logits + row * a.experts + expert)) : 0.0F;
  float sum = 1e-20F;
  for (int32_t k = 0; k < a.top_k; ++k) sum += __shfl_sync(0xffffffffU, value, k);
  if (!mine) return;
  a.expert[row * a.top_k + lane] = expert;
  a.weight[row * a.top_k + lane] = value / sum * a.scaling;
}

// One warp per row, a lane has kHeld scores: a multiple of it that lies 32 experts apart.
template <int kHeld>
__global__ void __launch_bounds__(kRouteThreads) RouteKernel(MoeRouteArgs a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t row = int64_t{blockIdx.x} * kRouteWarps + threadIdx.x / kWarpSize;
  float bias[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int32_t e = lane + i * kWarpSize;
    bias[i] = a.token_table == nullptr && e < a.experts ? a.bias[e] : 0.0F;
  }
  AllowNextKernel();
  WaitForEarlierKernels();
  if (row >= Min(__ldcg(a.live), a.rows)) return;
  if (a.token_table != nullptr) {
    const int64_t* table = a.token_table + int64_t{__ldcg(a.token + row)} * a.top_k;
    return StoreRoute(a, row, lane < a.top_k ? static_cast<int32_t>(table[lane]) : 0);
  }
  float score[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int32_t e = lane + i * kWarpSize;
    score[i] = e < a.experts ? __ldcg(a.logits + row * a.experts + e) : 0.0F;
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const float s = SqrtSoftplus(score[i]) + bias[i];
    score[i] = lane + i * kWarpSize >= a.experts ? -INFINITY : (isnan(s) ? -FLT_MAX : s);
  }
  int32_t expert = 0;
  for (int32_t k = 0; k < a.top_k; ++k) {
    Candidate best{-INFINITY, a.experts};
#pragma unroll
    for (int i = 0; i < kHeld; ++i) best = Better(best, {score[i], lane + i * kWarpSize});
    best = WarpBest(best);
    if (lane == k) expert = best.expert;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (best.expert == lane + i * kWarpSize) score[i] = -INFINITY;
    }
  }
  StoreRoute(a, row, expert);
}

// The same for any number of experts and choices. Dynamic shared memory: [warps, experts] biased scores, struck out as they are
// chosen.
__global__ void __launch_bounds__(kThreads) RouteAnyKernel(MoeRouteArgs a) {
  extern __shared__ float shared[];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t row = int64_t{blockIdx.x} * kWarps + warp;
  if (row >= Min(*a.live, a.rows)) return;
  const float* logits = a.logits + row * a.experts;
  int32_t* chosen = a.expert + row * a.top_k;
  if (a.token_table != nullptr) {
    const int64_t* table = a.token_table + int64_t{a.token[row]} * a.top_k;
    for (int32_t k = lane; k < a.top_k; k += kWarpSize) chosen[k] = static_cast<int32_t>(table[k]);
  } else {
    float* score = shared + warp * a.experts;
    for (int32_t e = lane; e < a.experts; e += kWarpSize) {
      const float s = SqrtSoftplus(logits[e]) + a.bias[e];
      score[e] = isnan(s) ? -FLT_MAX : s;
    }
    __syncwarp();
    for (int32_t k = 0; k < a.top_k; ++k) {
      Candidate best{-INFINITY, a.experts};
      for (int32_t e = lane; e < a.experts; e += kWarpSize) best = Better(best, {score[e], e});
      best = WarpBest(best);
      if (lane == 0) {
        chosen[k] = best.expert;
        score[best.expert] = -INFINITY;
      }
      __syncwarp();
    }
  }
  __syncwarp();
  if (lane != 0) return;
  float sum = 1e-20F;
  for (int32_t k = 0; k < a.top_k; ++k) sum += SqrtSoftplus(logits[chosen[k]]);
  for (int32_t k = 0; k < a.top_k; ++k) {
    a.weight[row * a.top_k + k] = SqrtSoftplus(logits[chosen[k]]) / sum * a.scaling;
  }
}

// One warp per expert, which walks all pairs twice: the first walk counts, the second places in row order. Experts do not wait
// for each other. The pairs of a decode step stay in registers between the walks.
__global__ void __launch_bounds__(kThreads) GroupKernel(MoeGroupArgs a) {
  constexpr int kHeld = 12;  // of a lane
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int32_t expert = static_cast<int32_t>(blockIdx.x * kWarps + threadIdx.x / kWarpSize);
  AllowNextKernel();
  WaitForEarlierKernels();
  if (expert >= a.experts) return;
  const int32_t planned = a.rows * a.top_k;
  const int32_t pairs = Min(__ldcg(a.live), a.rows) * a.top_k;
  int32_t held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int32_t p = lane + i * kWarpSize;
    held[i] = p < planned ? __ldcg(a.expert + p) : 0;
  }
  int32_t below = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (lane + i * kWarpSize >= pairs) held[i] = a.experts;
    below += held[i] < expert ? 1 : 0;
  }
  for (int32_t p = lane + kHeld * kWarpSize; p < pairs; p += kWarpSize) {
    below += __ldcg(a.expert + p) < expert ? 1 : 0;
  }
  int32_t place = WarpReduce(below, AddOp{});
  if (lane == 0) {
    a.groups.offset[expert] = place;
    if (expert == 0) a.groups.offset[a.experts] = pairs;
  }
  const auto put = [&](int32_t p, bool mine) {
    const unsigned members = __ballot_sync(0xffffffffU, mine);
    if (mine) {
      const int32_t at = place + __popc(members & ((1U << lane) - 1U));
      a.groups.pair_row[at] = p / a.top_k;
      a.groups.pair_choice[at] = p;
      a.groups.pair_of[p] = at;
    }
    place += __popc(members);
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) put(lane + i * kWarpSize, held[i] == expert);
  for (int32_t first = kHeld * kWarpSize; first < pairs; first += kWarpSize) {
    const int32_t p = first + lane;
    put(p, p < pairs && __ldcg(a.expert + p) == expert);
  }
}

// The expert that is the n-th with pairs, or -1. Every lane of every warp gets it.
__device__ int32_t ActiveExpert(const int32_t* offset, int32_t experts, int32_t n) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int32_t first = 0; first < experts; first += kWarpSize) {
    const int32_t e = first + lane;
    unsigned active = __ballot_sync(
        0xffffffffU, e < experts && offset[min(e, experts - 1) + 1] > offset[min(e, experts - 1)]);
    const int32_t count = __popc(active);
    if (n >= count) {
      n -= count;
      continue;
    }
    for (; n > 0; --n) active &= active - 1;
    return first + __ffs(static_cast<int>(active)) - 1;
  }
  return -1;
}

// Grid: (16-output tiles, experts that can have pairs).
template <DType kStorage, DType kRowType, int kRowTiles>
__global__ void __launch_bounds__(kLinearThreads) GroupedKernel(GroupedLinearArgs a) {
  extern __shared__ float sums[];
  constexpr int32_t kRows = kRowTiles * kTileRows;
  const int32_t expert = ActiveExpert(a.offset, a.experts, static_cast<int32_t>(blockIdx.y));
  if (expert < 0) return;
  const Weight weight = a.weights.table[expert];
  const int32_t end = a.offset[expert + 1];
  for (int32_t pair = a.offset[expert]; pair < end; pair += kRows) {
    const TileRowsOfX rows{a.x, 0, a.pair_row, pair, Min(kRows, end - pair)};
    LinearTile<kStorage, kRowType, kRowTiles>(weight, int64_t{blockIdx.x} * kTileOutputs,
                                              weight.out, rows, a.y, pair, sums);
  }
}

// Grid: (outputs / warps, experts that can have pairs).
__global__ void __launch_bounds__(kLinearThreads) GroupedAnyShapeKernel(GroupedLinearArgs a) {
  const int32_t expert = ActiveExpert(a.offset, a.experts, static_cast<int32_t>(blockIdx.y));
  if (expert < 0) return;
  const Weight weight = a.weights.table[expert];
  const int32_t output = static_cast<int32_t>(blockIdx.x * kLinearWarps + threadIdx.x / kWarpSize);
  if (output >= weight.out) return;
  const int32_t pair = a.offset[expert];
  const TileRowsOfX rows{a.x, 0, a.pair_row, pair, a.offset[expert + 1] - pair};
  LinearWarp(weight, output, rows, a.y, pair);
}

// Grid: (column blocks, rows).
__global__ void __launch_bounds__(kThreads) SwigluKernel(SwigluArgs a) {
  const int64_t row = blockIdx.y;
  const int32_t c = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  AllowNextKernel();
  WaitForEarlierKernels();
  if (row >= Min(__ldcg(a.live) * a.live_factor, a.rows) || c >= a.cols) return;
  const float weight = a.weight == nullptr ? 1.0F : __ldcg(a.weight + __ldcg(a.pair_choice + row));
  const float g = Min(LoadFreshElement(a.gate, row, c), a.limit);
  const float u = Max(-a.limit, Min(LoadFreshElement(a.up, row, c), a.limit));
  StoreElement(a.out, row, c, g / (1.0F + expf(-g)) * u * weight);
}

__global__ void __launch_bounds__(kThreads) CombineKernel(MoeCombineArgs a) {
  constexpr int kHeld = 8;  // pairs whose values are asked for together
  const int64_t row = blockIdx.y;
  const int32_t c = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  AllowNextKernel();
  WaitForEarlierKernels();
  if (row >= Min(__ldcg(a.live), a.rows) || c >= a.hidden) return;
  const float shared = LoadFreshElement(a.shared, row, c);
  float sum = 0.0F;
  for (int32_t first = 0; first < a.top_k; first += kHeld) {
    int32_t pair[kHeld];
    float value[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      pair[i] = first + i < a.top_k ? __ldcg(a.pair_of + row * a.top_k + first + i) : -1;
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      value[i] = pair[i] >= 0 ? LoadFreshElement(a.pairs, pair[i], c) : 0.0F;
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (pair[i] >= 0) sum += value[i];
    }
  }
  StoreElement(a.out, row, c, sum + shared);
}

unsigned Blocks(int64_t count, int64_t per_block) {
  return static_cast<unsigned>(CeilDiv(count, per_block));
}

unsigned MultiprocessorCount() {
  int device = 0;
  int count = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return static_cast<unsigned>(count);
}

template <typename Traits>
void LaunchStream(Stream& stream, const GroupedLinearArgs& a) {
  const StreamLayout layout = StreamLayout::For<Traits>(a.experts, a.weights.first.in);
  LaunchEarly(ExpertStreamKernel<Traits>,
              {dim3(MultiprocessorCount() * Traits::kBlocks), Traits::kThreads,
               static_cast<size_t>(layout.bytes), 1},
              CudaStreamOf(stream), a);
}

void LaunchStream(Stream& stream, const GroupedLinearArgs& a) {
  // While few experts have more than eight pairs, a second pass over their weights costs less than fewer warps.
  constexpr int32_t kFewPairs = 6;
  const bool few = a.max_pairs <= kFewPairs * a.experts;
  if (IsLongRow(a.weights.first.in)) {
    if (few) return LaunchStream<StreamTraits<true, 1>>(stream, a);
    return LaunchStream<StreamTraits<true, 2>>(stream, a);
  }
  if (few) return LaunchStream<StreamTraits<false, 1>>(stream, a);
  LaunchStream<StreamTraits<false, 2>>(stream, a);
}

}  // namespace

void MoeRouteCuda(Stream& stream, const MoeRouteArgs& a) {
  constexpr int32_t kFewExperts = 8 * kWarpSize;
  const cudaStream_t handle = CudaStreamOf(stream);
  if (a.experts <= kFewExperts && a.top_k <= kWarpSize) {
    LaunchEarly(RouteKernel<kFewExperts / kWarpSize>,
                {dim3(Blocks(a.rows, kRouteWarps)), kRouteThreads, 0, 1}, handle, a);
    return;
  }
  const size_t shared =
      static_cast<size_t>(kWarps) * static_cast<size_t>(a.experts) * sizeof(float);
  RouteAnyKernel<<<Blocks(a.rows, kWarps), kThreads, shared, handle>>>(a);
}

void MoeGroupCuda(Stream& stream, const MoeGroupArgs& a) {
  LaunchEarly(GroupKernel, {dim3(Blocks(a.experts, kWarps)), kThreads, 0, 1}, CudaStreamOf(stream),
              a);
}

void GroupedLinearCuda(Stream& stream, const GroupedLinearArgs& a) {
  const Weight& first = a.weights.first;
  if (CanStream(a)) return LaunchStream(stream, a);
  const unsigned active = static_cast<unsigned>(Min(a.experts, a.max_pairs));
  if (!PiecesAligned(a.x, first)) {
    const dim3 grid(Blocks(first.out, kLinearWarps), active);
    GroupedAnyShapeKernel<<<grid, kLinearThreads, 0, CudaStreamOf(stream)>>>(a);
    return;
  }
  const dim3 grid(Blocks(first.out, kTileOutputs), active);
  // Most experts of a decode step have a row or two, so the small tile serves until rows pile up.
  const int row_tiles = RowTilesFor(CeilDiv(a.max_pairs, a.experts));
  DispatchLinear(first.dtype, a.x.dtype, row_tiles, [&](auto storage, auto row_type, auto tiles) {
    constexpr int kRowTiles = decltype(tiles)::value;
    const auto kernel =
        GroupedKernel<decltype(storage)::value, decltype(row_type)::value, kRowTiles>;
    const size_t shared = LinearSharedBytes<kRowTiles>(first.in);
    AllowShared(kernel, shared);
    kernel<<<grid, kLinearThreads, shared, CudaStreamOf(stream)>>>(a);
  });
}

void SwigluCuda(Stream& stream, const SwigluArgs& a) {
  const dim3 grid(Blocks(a.cols, kThreads), static_cast<unsigned>(a.rows));
  LaunchEarly(SwigluKernel, {grid, kThreads, 0, 1}, CudaStreamOf(stream), a);
}

void MoeCombineCuda(Stream& stream, const MoeCombineArgs& a) {
  const dim3 grid(Blocks(a.hidden, kThreads), static_cast<unsigned>(a.rows));
  LaunchEarly(CombineKernel, {grid, kThreads, 0, 1}, CudaStreamOf(stream), a);
}

}  // namespace firesteel
