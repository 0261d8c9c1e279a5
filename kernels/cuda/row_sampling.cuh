// Choices over a row of a vocabulary by a cluster of blocks: argmax, softmax and draws, as sampling_math.h defines them. Every
// result depends on the row alone. All threads of the cluster must call them; all get the result.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/core/float_codec.h"
#include "kernels/core/math.h"
#include "kernels/core/philox.h"
#include "kernels/cuda/row_cluster.cuh"

namespace firesteel {

// An entry of a row.
struct Ranked {
  float value;
  int32_t index;
};

// Whether a comes before b: the larger value, NaN behind every number, ties to the lower index. A total order.
__device__ inline bool Before(const Ranked& a, const Ranked& b) {
  const bool a_is_nan = isnan(a.value);
  const bool b_is_nan = isnan(b.value);
  if (a_is_nan != b_is_nan) return b_is_nan;
  if (!a_is_nan && a.value != b.value) return a.value > b.value;
  return a.index < b.index;
}

struct FirstOp {
  __device__ Ranked operator()(const Ranked& a, const Ranked& b) const {
    return Before(b, a) ? b : a;
  }
};

// Behind every entry of a row.
__device__ inline Ranked LastRanked() { return {BitsFloat(0x7fc00000U), INT32_MAX}; }

// Takes the entries of a row in ascending order and keeps the first.
struct FirstSeen {
  Ranked best = LastRanked();
  __device__ void Take(float value, int32_t index) {
    // Most entries end here; an equal one comes behind.
    if (value <= best.value) return;
    best = FirstOp{}(best, Ranked{value, index});
  }
};

// ArgMax of sampling_math.h.
__device__ inline Ranked ClusterArgMax(RowCluster& cluster, const float* x, int32_t count) {
  FirstSeen first;
  cluster.ForEntries(x, count, [&](int32_t i, float value) { first.Take(value, i); });
  return cluster.Reduce(first.best, FirstOp{});
}

// p = softmax(scale * x), each entry visible to the thread it belongs to; x may be p. Returns the largest of p.
__device__ inline float ClusterSoftmax(RowCluster& cluster, const float* x, float scale,
                                       int32_t count, float* p) {
  FirstSeen first;
  cluster.ForEntries(x, count, [&](int32_t i, float value) { first.Take(value * scale, i); });
  const float top = cluster.Reduce(first.best, FirstOp{}).value;
  float sum = 0.0F;
  cluster.ForQuads<1>({x}, count, [&](int32_t begin, float(&quad)[1][4]) {
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      quad[0][j] = expf(quad[0][j] * scale - top);
      if (begin + j < count) sum += quad[0][j];
    }
    StoreF32Quad(p + begin, count - begin, quad[0]);
  });
  const float inverse = 1.0F / cluster.Reduce(sum, AddOp{});
  cluster.ForQuads<1>({p}, count, [&](int32_t begin, float(&quad)[1][4]) {
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) quad[0][j] *= inverse;
    StoreF32Quad(p + begin, count - begin, quad[0]);
  });
  return inverse;  // the best entry's exponential is exactly 1
}

// DrawIndex of sampling_math.h, but -1 when no weight is positive. Weights are those of the first row, less those of the
// second where there is one.
template <int kRows>
__device__ int32_t ClusterDraw(RowCluster& cluster, const float* const (&rows)[kRows],
                               int32_t count, uint64_t seed, int64_t position,
                               DrawPurpose purpose) {
  static_assert(kRows == 1 || kRows == 2);
  Ranked best{-1.0F, INT32_MAX};  // keys are not negative
  cluster.ForQuads(rows, count, [&](int32_t first, const float(&quads)[kRows][4]) {
    float weight[4];
    bool any = false;
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      weight[j] = kRows == 1 ? quads[0][j] : quads[0][j] - quads[kRows - 1][j];
      any = any || (first + j < count && weight[j] > 0.0F);
    }
    if (!any) return;
    const PhiloxBlock block =
        DrawBlock(seed, position, purpose, static_cast<uint32_t>(first / 4) + 1);
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      if (first + j >= count || !(weight[j] > 0.0F)) continue;
      best = FirstOp{}(best, Ranked{weight[j] / -logf(UniformFromWord(block.word[j])), first + j});
    }
  });
  best = cluster.Reduce(best, FirstOp{});
  return best.value < 0.0F ? -1 : best.index;
}

// The same for the weights w. An argmax where none is positive.
__device__ inline int32_t ClusterDrawFrom(RowCluster& cluster, const float* w, int32_t count,
                                          uint64_t seed, int64_t position, DrawPurpose purpose) {
  const int32_t index = ClusterDraw<1>(cluster, {w}, count, seed, position, purpose);
  return index < 0 ? ClusterArgMax(cluster, w, count).index : index;
}

}  // namespace firesteel
