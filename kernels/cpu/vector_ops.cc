#include "kernels/cpu/vector_ops.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/vector_ops.cc"
#include <hwy/foreach_target.h>
// foreach_target.h must come first.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace firesteel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(FloatTag()));

FloatVec LoadFirst(const float* x, int64_t n) {
  const FloatTag d;
  return n >= kLanes ? hn::LoadU(d, x)
                     : hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(n)), d, x);
}

void StoreFirst(FloatVec v, float* x, int64_t n) {
  const FloatTag d;
  if (n >= kLanes) {
    hn::StoreU(v, d, x);
  } else {
    hn::BlendedStore(v, hn::FirstN(d, static_cast<size_t>(n)), d, x);
  }
}

float DotImpl(const float* a, const float* b, int64_t count) {
  const FloatTag d;
  FloatVec acc[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int u = 0; u < 4; ++u) {
      acc[u] =
          hn::MulAdd(hn::LoadU(d, a + i + u * kLanes), hn::LoadU(d, b + i + u * kLanes), acc[u]);
    }
  }
  for (; i < count; i += kLanes) {
    acc[0] = hn::MulAdd(LoadFirst(a + i, count - i), LoadFirst(b + i, count - i), acc[0]);
  }
  const FloatVec sum = hn::Add(hn::Add(acc[0], acc[1]), hn::Add(acc[2], acc[3]));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void ScaleRowImpl(const float* x, float scale, const float* weight, int64_t count, float* y) {
  const FloatTag d;
  const FloatVec s = hn::Set(d, scale);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = count - i;
    FloatVec v = hn::Mul(LoadFirst(x + i, n), s);
    if (weight != nullptr) v = hn::Mul(v, LoadFirst(weight + i, n));
    StoreFirst(v, y + i, n);
  }
}

void AddScaledImpl(float a, const float* x, int64_t count, float* y) {
  const FloatTag d;
  const FloatVec factor = hn::Set(d, a);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = count - i;
    StoreFirst(hn::MulAdd(factor, LoadFirst(x + i, n), LoadFirst(y + i, n)), y + i, n);
  }
}

void SoftmaxPoolImpl(const float* const* value, const float* const* score, int64_t count,
                     int64_t channels, float* out) {
  const FloatTag d;
  for (int64_t c = 0; c < channels; c += kLanes) {
    const int64_t n = channels - c;
    FloatVec top = hn::Set(d, -std::numeric_limits<float>::infinity());
    for (int64_t t = 0; t < count; ++t) {
      if (score[t] != nullptr) top = hn::Max(top, LoadFirst(score[t] + c, n));
    }
    FloatVec sum = hn::Zero(d);
    FloatVec pooled = hn::Zero(d);
    for (int64_t t = 0; t < count; ++t) {
      if (score[t] == nullptr) continue;
      const FloatVec e = hn::Exp(d, hn::Sub(LoadFirst(score[t] + c, n), top));
      sum = hn::Add(sum, e);
      pooled = hn::MulAdd(e, LoadFirst(value[t] + c, n), pooled);
    }
    StoreFirst(hn::Div(pooled, sum), out + c, n);
  }
}

float ExpShiftedImpl(float* x, int64_t count, float shift) {
  const FloatTag d;
  const FloatVec s = hn::Set(d, shift);
  FloatVec sum = hn::Zero(d);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = count - i;
    FloatVec e = hn::Exp(d, hn::Sub(LoadFirst(x + i, n), s));
    if (n < kLanes) e = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(n)), e);
    StoreFirst(e, x + i, n);
    sum = hn::Add(sum, e);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

}  // namespace firesteel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace firesteel {

HWY_EXPORT(DotImpl);
HWY_EXPORT(ScaleRowImpl);
HWY_EXPORT(AddScaledImpl);
HWY_EXPORT(SoftmaxPoolImpl);
HWY_EXPORT(ExpShiftedImpl);

float Dot(const float* a, const float* b, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(DotImpl)(a, b, count);
}
float SumOfSquares(const float* x, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(DotImpl)(x, x, count);
}
void ScaleRow(const float* x, float scale, const float* weight, int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(ScaleRowImpl)(x, scale, weight, count, y);
}
void AddScaled(float a, const float* x, int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(AddScaledImpl)(a, x, count, y);
}
void SoftmaxPool(const float* const* value, const float* const* score, int64_t count,
                 int64_t channels, float* out) {
  HWY_DYNAMIC_DISPATCH(SoftmaxPoolImpl)(value, score, count, channels, out);
}
float ExpShifted(float* x, int64_t count, float shift) {
  return HWY_DYNAMIC_DISPATCH(ExpShiftedImpl)(x, count, shift);
}

}  // namespace firesteel
#endif  // HWY_ONCE
