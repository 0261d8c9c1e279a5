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

// One warp per row. Dynamic shared memory: [warps, experts] biased scores, struck out as they are chosen.
__global__ void __launch_bounds__(kThreads) RouteKernel(MoeRouteArgs a) {
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
// for each other.
__global__ void __launch_bounds__(kThreads) GroupKernel(MoeGroupArgs a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int32_t expert = static_cast<int32_t>(blockIdx.x * kWarps + threadIdx.x / kWarpSize);
  if (expert >= a.experts) return;
  const int32_t pairs = Min(*a.live, a.rows) * a.top_k;
  int32_t below = 0;
  for (int32_t p = lane; p < pairs; p += kWarpSize) below += a.expert[p] < expert ? 1 : 0;
  int32_t place = WarpReduce(below, AddOp{});
  if (lane == 0) {
    a.groups.offset[expert] = place;
    if (expert == 0) a.groups.offset[a.experts] = pairs;
  }
  for (int32_t first = 0; first < pairs; first += kWarpSize) {
    const int32_t p = first + lane;
    const bool mine = p < pairs && a.expert[p] == expert;
    const unsigned members = __ballot_sync(0xffffffffU, mine);
    if (mine) {
      const int32_t at = place + __popc(members & ((1U << lane) - 1U));
      a.groups.pair_row[at] = p / a.top_k;
      a.groups.pair_choice[at] = p;
      a.groups.pair_of[p] = at;
    }
    place += __popc(members);
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
  if (row >= Min(*a.live * a.live_factor, a.rows) || c >= a.cols) return;
  const float weight = a.weight == nullptr ? 1.0F : a.weight[a.pair_choice[row]];
  const float g = Min(LoadElement(a.gate, row, c), a.limit);
  const float u = Max(-a.limit, Min(LoadElement(a.up, row, c), a.limit));
  StoreElement(a.out, row, c, g / (1.0F + expf(-g)) * u * weight);
}

__global__ void __launch_bounds__(kThreads) CombineKernel(MoeCombineArgs a) {
  const int64_t row = blockIdx.y;
  const int32_t c = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (row >= Min(*a.live, a.rows) || c >= a.hidden) return;
  float sum = 0.0F;
  for (int32_t k = 0; k < a.top_k; ++k) {
    sum += LoadElement(a.pairs, a.pair_of[row * a.top_k + k], c);
  }
  StoreElement(a.out, row, c, sum + LoadElement(a.shared, row, c));
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
  const size_t shared =
      static_cast<size_t>(kWarps) * static_cast<size_t>(a.experts) * sizeof(float);
  RouteKernel<<<Blocks(a.rows, kWarps), kThreads, shared, CudaStreamOf(stream)>>>(a);
}

void MoeGroupCuda(Stream& stream, const MoeGroupArgs& a) {
  GroupKernel<<<Blocks(a.experts, kWarps), kThreads, 0, CudaStreamOf(stream)>>>(a);
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
  SwigluKernel<<<grid, kThreads, 0, CudaStreamOf(stream)>>>(a);
}

void MoeCombineCuda(Stream& stream, const MoeCombineArgs& a) {
  const dim3 grid(Blocks(a.hidden, kThreads), static_cast<unsigned>(a.rows));
  CombineKernel<<<grid, kThreads, 0, CudaStreamOf(stream)>>>(a);
}

}  // namespace firesteel
