// Hyper-connections of four streams, the published count, on rows whose columns come in aligned quads. What other counts and
// other rows take is beside it in hyper_mix_cuda.cu; which one runs depends on shapes alone.
//
// A row is one block, so that its sums have one order. The first tile of columns stays in registers between the sum of
// squares and the collapse; the Sinkhorn iterations, which nothing in the row waits for, are one more warp's.
#pragma once

#include <type_traits>

#include "kernels/core/math.h"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/row_quad.cuh"
#include "kernels/ops/hyper_mix/hyper_mix.h"

namespace firesteel::mix_four {

inline constexpr int kStreams = 4;
inline constexpr int kMixed = (2 + kStreams) * kStreams;  // mixing outputs of a row
inline constexpr int kThreads = 512;                      // that read the row
inline constexpr int kWarps = kThreads / kWarpSize;
inline constexpr int kQuads = 2;  // of a stream that a thread keeps
inline constexpr int kTileColumns = 4 * kThreads * kQuads;
inline constexpr int kExpandThreads = 128;
// Grids up to this size wait for single loads and not for bandwidth: their blocks read a row before they know that it is live.
inline constexpr unsigned kEagerRows = 256;

__device__ inline float SigmoidOf(float x) { return 1.0F / (1.0F + expf(-x)); }

// The mixing warp stands in a branch of its own, so barriers are named.
template <int kBarrier, int kCount>
__device__ void WaitFor() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kCount) : "memory");
}

// 1 / x with an error of one unit in the last place. REQUIRES: x and 1 / x are not subnormal.
__device__ inline float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// All lanes of 4i .. 4i + 3 get what `op` makes of their four values.
template <typename Op>
__device__ float FourLanes(float value, Op op) {
  value = op(value, __shfl_xor_sync(0xffffffffU, value, 1));
  return op(value, __shfl_xor_sync(0xffffffffU, value, 2));
}

// c[j][k] by alternating column and row normalisation, columns first. With the whole matrix in one thread's registers a sum
// takes no exchange. What the rounds change are factors of the rows and of the columns, c[j][k] = row[j] start[j][k] column[k]:
// that is four products a round in place of sixteen, and a chain of rounds is all this is.
__device__ inline void Normalise(float (&c)[kStreams][kStreams], int32_t iterations, float eps) {
  static_assert(kStreams == 4);
  float row[kStreams] = {1.0F, 1.0F, 1.0F, 1.0F};
  float column[kStreams] = {1.0F, 1.0F, 1.0F, 1.0F};
  for (int32_t i = 0; i < iterations; ++i) {
    if (i > 0) {
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        const float sum = fmaf(c[j][1], column[1], c[j][0] * column[0]) +
                          fmaf(c[j][3], column[3], c[j][2] * column[2]);
        row[j] *= Reciprocal(fmaf(row[j], sum, eps));
      }
    }
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      const float sum =
          fmaf(c[1][k], row[1], c[0][k] * row[0]) + fmaf(c[3][k], row[3], c[2][k] * row[2]);
      column[k] *= Reciprocal(fmaf(column[k], sum, eps));
    }
  }
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int k = 0; k < kStreams; ++k) c[j][k] *= row[j] * column[k];
  }
}

// One mixing output of a row before its activation.
struct MixedOutput {
  float m = 0.0F;
  float scale = 0.0F;
  float base = 0.0F;
  __device__ float Of(float rho) const { return m * rho * scale + base; }
};

// A tile of a row: what one thread holds of it.
template <DType kStorage>
struct Tile {
  typename StoredQuad<kStorage>::Type x[kStreams][kQuads];
  uint2 weight[kQuads];

  static __device__ int32_t Column(int32_t tile, int quad) {
    return tile * kTileColumns + 4 * (static_cast<int32_t>(threadIdx.x) + quad * kThreads);
  }
  // `norm` [hidden] is read too where it is not null.
  __device__ void Load(const ConstRows& rows, int64_t row, int32_t hidden, int32_t tile,
                       const uint16_t* norm) {
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const int32_t c = Column(tile, q);
        x[s][q] = {};
        if (c < hidden) x[s][q] = LoadStoredQuad<kStorage>(rows, row, int64_t{s} * hidden + c);
      }
    }
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int32_t c = Column(tile, q);
      weight[q] = {};
      if (norm != nullptr && c < hidden) weight[q] = *reinterpret_cast<const uint2*>(norm + c);
    }
  }
  __device__ void AddSquares(float4* sum) const {
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const float4 v = QuadValues(x[s][q]);
        *sum = {fmaf(v.x, v.x, sum->x), fmaf(v.y, v.y, sum->y), fmaf(v.z, v.z, sum->z),
                fmaf(v.w, v.w, sum->w)};
      }
    }
  }
  __device__ float4 Collapsed(const float (&pre)[kStreams], int quad) const {
    const float4 first = QuadValues(x[0][quad]);
    float4 sum{pre[0] * first.x, pre[0] * first.y, pre[0] * first.z, pre[0] * first.w};
#pragma unroll
    for (int s = 1; s < kStreams; ++s) {
      const float4 v = QuadValues(x[s][quad]);
      sum = {fmaf(pre[s], v.x, sum.x), fmaf(pre[s], v.y, sum.y), fmaf(pre[s], v.z, sum.z),
             fmaf(pre[s], v.w, sum.w)};
    }
    return sum;
  }
};

// The sum of the partials, for every lane of the warp that calls it.
__device__ inline float SumOfWarps(const float* partial) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  return WarpReduce(lane < kWarps ? partial[lane] : 0.0F, AddOp{});
}

__device__ inline float InverseRoot(float squares, float count, float eps) {
  return 1.0F / sqrtf(squares / count + eps);
}

// post and comb of a row, by the warp behind those that read it.
__device__ inline void MixStreams(const HyperCollapseArgs& a, int64_t row, int32_t live,
                                  const float* partial) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  MixedOutput own;
  if (lane < kMixed) {
    const int part = lane < kStreams ? 0 : (lane < 2 * kStreams ? 1 : 2);
    own = {__ldcg(a.mix + row * kMixed + lane), a.params.scale[part], a.params.base[lane]};
  }
  if (row >= live) return;
  WaitFor<1, kThreads + kWarpSize>();
  const float rho = InverseRoot(
      SumOfWarps(partial), static_cast<float>(int64_t{kStreams} * a.hidden), a.params.norm_eps);
  const float value = own.Of(rho);
  if (lane / kStreams == 1) a.post[row * kStreams + lane % kStreams] = 2.0F * SigmoidOf(value);
  const float e = expf(value - FourLanes(value, MaxOp{}));
  const float softmax = e / FourLanes(e, AddOp{}) + a.params.eps;
  float c[kStreams][kStreams];
#pragma unroll
  for (int i = 0; i < kStreams * kStreams; ++i) {
    c[i / kStreams][i % kStreams] = __shfl_sync(0xffffffffU, softmax, 2 * kStreams + i);
  }
  Normalise(c, a.params.sinkhorn_iterations, a.params.eps);
  float mine = 0.0F;
#pragma unroll
  for (int i = 0; i < kStreams * kStreams; ++i) {
    if (lane == i) mine = c[i / kStreams][i % kStreams];
  }
  if (lane < kStreams * kStreams) a.comb[row * kStreams * kStreams + lane] = mine;
}

// One block per row: kThreads of it collapse, and where comb is wanted one more warp mixes. Dynamic shared memory:
// [hidden] collapsed values times the norm's weight, none for the head.
template <DType kStorage, typename Args>
__global__ void __launch_bounds__(kThreads + kWarpSize, 2) CollapseRow(Args a) {
  constexpr bool kNorms = std::is_same_v<Args, HyperCollapseArgs>;
  constexpr int kOutputs = kNorms ? kMixed : kStreams;
  extern __shared__ float4 collapsed[];
  __shared__ float partial[2][kWarps];
  AllowNextKernel();
  WaitForEarlierKernels();
  const int64_t row = blockIdx.x;
  const int32_t live = __ldcg(a.live);
  if (gridDim.x > kEagerRows && row >= live) return;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kNorms) {
    if (thread >= kThreads) return MixStreams(a, row, live, partial[0]);
  }
  const int lane = thread % kWarpSize;
  const int32_t last = CeilDiv(a.hidden, kTileColumns) - 1;
  const uint16_t* weight = nullptr;
  if constexpr (kNorms) weight = a.weight;
  Tile<kStorage> tile;
  float4 sum{};
  for (int32_t t = last; t >= 0; --t) {
    tile.Load(a.x, row, a.hidden, t, weight);
    tile.AddSquares(&sum);
  }
  MixedOutput own;
  if (lane < kStreams)
    own = {__ldcg(a.mix + row * kOutputs + lane), a.params.scale[0], a.params.base[lane]};
  if (row >= live) return;
  const float squares = WarpReduce((sum.x + sum.y) + (sum.z + sum.w), AddOp{});
  if (lane == 0) partial[0][thread / kWarpSize] = squares;
  WaitFor<1, kThreads + (kNorms ? kWarpSize : 0)>();
  const float rho = InverseRoot(
      SumOfWarps(partial[0]), static_cast<float>(int64_t{kStreams} * a.hidden), a.params.norm_eps);
  const float own_pre = SigmoidOf(own.Of(rho)) + a.params.eps;
  float pre[kStreams];
#pragma unroll
  for (int s = 0; s < kStreams; ++s) pre[s] = __shfl_sync(0xffffffffU, own_pre, s);

  float4 norm{};
  for (int32_t t = 0; t <= last; ++t) {
    if (t > 0) tile.Load(a.x, row, a.hidden, t, weight);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int32_t c = Tile<kStorage>::Column(t, q);
      if (c >= a.hidden) continue;
      const float4 v = tile.Collapsed(pre, q);
      if constexpr (kNorms) {
        const float4 w = QuadValues(tile.weight[q]);
        norm = {fmaf(v.x, v.x, norm.x), fmaf(v.y, v.y, norm.y), fmaf(v.z, v.z, norm.z),
                fmaf(v.w, v.w, norm.w)};
        collapsed[c / 4] = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
      } else {
        StoreQuad(a.out, row, c, v);
      }
    }
  }
  if constexpr (kNorms) {
    const float norm_squares = WarpReduce((norm.x + norm.y) + (norm.z + norm.w), AddOp{});
    if (lane == 0) partial[1][thread / kWarpSize] = norm_squares;
    WaitFor<2, kThreads>();
    const float inverse =
        InverseRoot(SumOfWarps(partial[1]), static_cast<float>(a.hidden), a.params.norm_eps);
    for (int32_t c = 4 * thread; c < a.hidden; c += 4 * kThreads) {
      const float4 v = collapsed[c / 4];
      StoreQuad(a.out, row, c, {v.x * inverse, v.y * inverse, v.z * inverse, v.w * inverse});
    }
  }
}

// Grid: (blocks of columns, rows). A thread owns four columns of all streams, so the update in place needs no barrier.
template <DType kStorage>
__global__ void __launch_bounds__(kExpandThreads) ExpandRow(HyperExpandArgs a) {
  AllowNextKernel();
  WaitForEarlierKernels();
  const int64_t row = blockIdx.y;
  const int32_t c = 4 * static_cast<int32_t>(blockIdx.x * kExpandThreads + threadIdx.x);
  if (c >= a.hidden) return;
  const int32_t live = __ldcg(a.live);
  if (gridDim.y > kEagerRows && row >= live) return;
  float4 x[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    x[j] = QuadValues(LoadStoredQuad<kStorage>(a.x, row, int64_t{j} * a.hidden + c));
  }
  const float4 f = LoadQuad(a.f, row, c);
  float post[kStreams];
  float comb[kStreams][kStreams];
  *reinterpret_cast<float4*>(post) = __ldcg(reinterpret_cast<const float4*>(a.post) + row);
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    *reinterpret_cast<float4*>(comb[j]) =
        __ldcg(reinterpret_cast<const float4*>(a.comb) + row * kStreams + j);
  }
  if (row >= live) return;
#pragma unroll
  for (int k = 0; k < kStreams; ++k) {
    float4 sum{f.x * post[k], f.y * post[k], f.z * post[k], f.w * post[k]};
    // Note the transpose: the sum runs over the first index of C.
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      sum = {fmaf(comb[j][k], x[j].x, sum.x), fmaf(comb[j][k], x[j].y, sum.y),
             fmaf(comb[j][k], x[j].z, sum.z), fmaf(comb[j][k], x[j].w, sum.w)};
    }
    StoreQuad(a.x, row, int64_t{k} * a.hidden + c, sum);
  }
}

}  // namespace firesteel::mix_four
