#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/highway_targets.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/ops/sparse_attention/sparse_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/sparse_attention/sparse_attention_cpu.cc"
#include <hwy/foreach_target.h>
// foreach_target.h must come first.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace firesteel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(FloatTag()));

// scores[h][t] = scale * q_h . k_t for H heads and the T keys from `first` on; head_dim is a multiple of 16. One order of
// sums for every T.
template <int H, int T>
void ScoreTile(const float* q, int64_t head_dim, const float* const* keys, int64_t first,
               int64_t count, float scale, float* scores) {
  const FloatTag d;
  FloatVec acc[T][H];
  for (int t = 0; t < T; ++t) {
    for (int h = 0; h < H; ++h) acc[t][h] = hn::Zero(d);
  }
  for (int64_t c = 0; c < head_dim; c += kLanes) {
    FloatVec k[T];
    for (int t = 0; t < T; ++t) k[t] = hn::LoadU(d, keys[first + t] + c);
    for (int h = 0; h < H; ++h) {
      const FloatVec v = hn::LoadU(d, q + h * head_dim + c);
      for (int t = 0; t < T; ++t) acc[t][h] = hn::MulAdd(v, k[t], acc[t][h]);
    }
  }
  for (int t = 0; t < T; ++t) {
    for (int h = 0; h < H; ++h) {
      scores[h * count + first + t] = scale * hn::GetLane(hn::SumOfLanes(d, acc[t][h]));
    }
  }
}

template <int H>
void ScoreHeads(const float* q, int64_t head_dim, const float* const* keys, int64_t count,
                float scale, float* scores) {
  constexpr int kKeys = 2;  // as many sums as hide the latency of one
  int64_t t = 0;
  for (; t + kKeys <= count; t += kKeys) {
    ScoreTile<H, kKeys>(q, head_dim, keys, t, count, scale, scores);
  }
  for (; t < count; ++t) ScoreTile<H, 1>(q, head_dim, keys, t, count, scale, scores);
}

// out_h = inverse_h * sum_t p[h][t] k_t
template <int H>
void WeightKeys(const float* p, const float* const* keys, int64_t count, int64_t head_dim,
                const float* inverse, float* out) {
  const FloatTag d;
  constexpr int kUnroll = 2;
  int64_t c = 0;
  for (; c + kUnroll * kLanes <= head_dim; c += kUnroll * kLanes) {
    FloatVec acc[H][kUnroll];
    for (int h = 0; h < H; ++h) {
      for (int u = 0; u < kUnroll; ++u) acc[h][u] = hn::Zero(d);
    }
    for (int64_t t = 0; t < count; ++t) {
      FloatVec k[kUnroll];
      for (int u = 0; u < kUnroll; ++u) k[u] = hn::LoadU(d, keys[t] + c + u * kLanes);
      for (int h = 0; h < H; ++h) {
        const FloatVec weight = hn::Set(d, p[h * count + t]);
        for (int u = 0; u < kUnroll; ++u) acc[h][u] = hn::MulAdd(weight, k[u], acc[h][u]);
      }
    }
    for (int h = 0; h < H; ++h) {
      for (int u = 0; u < kUnroll; ++u) {
        hn::StoreU(hn::Mul(acc[h][u], hn::Set(d, inverse[h])), d,
                   out + h * head_dim + c + u * kLanes);
      }
    }
  }
  for (; c < head_dim; c += kLanes) {
    for (int h = 0; h < H; ++h) {
      FloatVec acc = hn::Zero(d);
      for (int64_t t = 0; t < count; ++t) {
        acc = hn::MulAdd(hn::Set(d, p[h * count + t]), hn::LoadU(d, keys[t] + c), acc);
      }
      hn::StoreU(hn::Mul(acc, hn::Set(d, inverse[h])), d, out + h * head_dim + c);
    }
  }
}

void ScoreImpl(int heads, const float* q, int64_t head_dim, const float* const* keys, int64_t count,
               float scale, float* scores) {
  if (heads == 4) return ScoreHeads<4>(q, head_dim, keys, count, scale, scores);
  return ScoreHeads<1>(q, head_dim, keys, count, scale, scores);
}

void WeightImpl(int heads, const float* p, const float* const* keys, int64_t count,
                int64_t head_dim, const float* inverse, float* out) {
  if (heads == 4) return WeightKeys<4>(p, keys, count, head_dim, inverse, out);
  return WeightKeys<1>(p, keys, count, head_dim, inverse, out);
}

}  // namespace firesteel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/row_access.h"

namespace firesteel {

HWY_EXPORT(ScoreImpl);
HWY_EXPORT(WeightImpl);

namespace {

constexpr int32_t kHeadGroup = 4;  // heads that share one pass over the keys

// Softmax weights of one head, in place, and the factor that normalises them. The sink joins the denominator only.
float Softmax(float* scores, int64_t count, float sink) {
  float top = sink;
  for (int64_t t = 0; t < count; ++t) top = Max(top, scores[t]);
  if (top == -std::numeric_limits<float>::infinity()) return 0.0F;
  const float sum = ExpShifted(scores, count, top) + std::exp(sink - top);
  return sum > 0.0F ? 1.0F / sum : 0.0F;
}

int64_t GatherKeys(const KvPages& pages, const SparseRows& rows, int64_t list, WorkerScratch& s,
                   const float** keys) {
  const int32_t valid = rows.valid[list];
  const int32_t* index = rows.index + list * rows.width;
  float* decoded =
      pages.format == KvFormat::kF32 ? nullptr : s.Floats(int64_t{valid} * pages.width);
  for (int32_t t = 0; t < valid; ++t) {
    keys[t] = DecodeKvRow(pages, index[t],
                          decoded == nullptr ? nullptr : decoded + int64_t{t} * pages.width);
  }
  return valid;
}

// One query row's heads [first_head, first_head + group) over gathered keys.
void AttendGroup(const SparseAttentionArgs& a, int64_t row, int64_t first_head, int32_t group,
                 const float* const* keys, int64_t count, float* scores, WorkerScratch& s) {
  const size_t mark = s.Mark();
  const bool narrow = a.q.dtype != DType::kF32;
  float* q_buffer = narrow ? s.Floats(int64_t{a.heads} * a.head_dim) : nullptr;
  const float* q =
      ReadRow(a.q, row, int64_t{a.heads} * a.head_dim, q_buffer) + first_head * a.head_dim;
  HWY_DYNAMIC_DISPATCH(ScoreImpl)(group, q, a.head_dim, keys, count, a.scale, scores);
  float inverse[kHeadGroup];
  for (int32_t h = 0; h < group; ++h) {
    inverse[h] = Softmax(scores + h * count, count, a.sink[first_head + h]);
  }
  const int64_t group_width = int64_t{group} * a.head_dim;
  Rows slice = a.out;
  slice.data =
      static_cast<std::byte*>(a.out.data) + first_head * a.head_dim * DTypeBytes(a.out.dtype);
  float* out_buffer = a.out.dtype == DType::kF32 ? nullptr : s.Floats(group_width);
  float* out = WritableRow(slice, row, out_buffer);
  HWY_DYNAMIC_DISPATCH(WeightImpl)(group, scores, keys, count, a.head_dim, inverse, out);
  FinishRow(slice, row, group_width, out);
  s.Rewind(mark);
}

}  // namespace

void SparseAttentionCpu(Stream& stream, const SparseAttentionArgs& a) {
  const int32_t group = a.heads % kHeadGroup == 0 ? kHeadGroup : 1;
  const int64_t groups = a.heads / group;
  const int64_t rows = Min(*a.live, a.rows);
  const int64_t lists = CeilDiv<int64_t>(rows, a.rows_per_list);
  // A work item gathers and decodes one list's keys once. With few lists the heads are split over items as well.
  const int64_t splits = lists < 2 * PoolOf(stream).threads() ? groups : 1;
  PoolOf(stream).Run(lists * splits, 1, [&](int64_t begin, int64_t end, WorkerScratch& s) {
    for (int64_t item = begin; item < end; ++item) {
      s.Reset();
      const int64_t list = item / splits;
      const bool has_extra = a.extra_rows.valid != nullptr;
      const int64_t most =
          Max<int64_t>(a.window_rows.valid[list] + (has_extra ? a.extra_rows.valid[list] : 0), 1);
      auto** keys = reinterpret_cast<const float**>(s.Bytes(most * 8));
      float* scores = s.Floats(most * group);
      int64_t count = GatherKeys(a.window, a.window_rows, list, s, keys);
      if (has_extra) count += GatherKeys(a.extra, a.extra_rows, list, s, keys + count);
      const int64_t last_row = Min(rows, (list + 1) * a.rows_per_list);
      for (int64_t row = list * a.rows_per_list; row < last_row; ++row) {
        for (int64_t g = item % splits; g < groups; g += splits) {
          AttendGroup(a, row, g * group, group, keys, count, scores, s);
        }
      }
    }
  });
}

}  // namespace firesteel
#endif  // HWY_ONCE
