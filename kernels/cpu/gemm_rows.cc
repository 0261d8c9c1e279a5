#include "kernels/cpu/gemm_rows.h"

#include <algorithm>
#include <limits>

#include "kernels/core/float_codec.h"
#include "kernels/core/math.h"
#include "kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_rows.cc"
#include <hwy/foreach_target.h>
// foreach_target.h must come first.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace firesteel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kGroup =
    32;  // columns between two looks at a scale; every scale tile is a multiple of it
constexpr int kTileOutputs = 4;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(FloatTag()));
// Six rows are a verify step of K = 5: each weight is decoded once for it.
constexpr int kTileRows = 6;
// Outputs beside each other in a tile of `rows`: its accumulators must stay in registers, 32 of them with AVX-512 and 16
// otherwise.
constexpr int TileOutputs(int rows) { return kLanes >= 16 || rows <= 3 ? kTileOutputs : 2; }

// A loader yields weight columns of up to kTileOutputs rows as fp32 vectors. BeginGroup(c, g) is called before the
// vectors of columns [g * kGroup, (g + 1) * kGroup) of row c; Load(c, i, k) yields the i-th vector of the group, at
// column k; LoadTail(c, k, n) the last n columns of a row that is no multiple of kGroup.

class F32Loader {
 public:
  F32Loader(const float* rows, int64_t in) : rows_(rows), in_(in) {}
  void BeginGroup(int, int64_t) {}
  FloatVec Load(int c, int64_t, int64_t k) const {
    return hn::LoadU(FloatTag(), rows_ + c * in_ + k);
  }
  FloatVec LoadTail(int c, int64_t k, size_t n) const {
    const FloatTag d;
    return hn::MaskedLoad(hn::FirstN(d, n), d, rows_ + c * in_ + k);
  }

 private:
  const float* rows_;
  int64_t in_;
};

class Bf16Loader {
 public:
  Bf16Loader(const Weight& w, int64_t o)
      : rows_(static_cast<const uint16_t*>(w.data) + o * w.in), in_(w.in) {}
  void BeginGroup(int, int64_t) {}
  FloatVec Load(int c, int64_t, int64_t k) const {
    const hn::Rebind<uint16_t, FloatTag> d16;
    return Widen(hn::LoadU(d16, rows_ + c * in_ + k));
  }
  FloatVec LoadTail(int c, int64_t k, size_t n) const {
    const hn::Rebind<uint16_t, FloatTag> d16;
    uint16_t columns[hn::MaxLanes(d16)] = {};
    for (size_t i = 0; i < n; ++i) columns[i] = rows_[c * in_ + k + static_cast<int64_t>(i)];
    return Widen(hn::LoadU(d16, columns));
  }

 private:
  static FloatVec Widen(hn::Vec<hn::Rebind<uint16_t, FloatTag>> v) {
    const hn::Rebind<uint32_t, FloatTag> d32;
    return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(d32, v)));
  }
  const uint16_t* rows_;
  int64_t in_;
};

// Rows of one row of scale tiles, whose scales are `scales`, one for each group of columns. kSmallScales: they hold
// 2^120 * scale.
template <bool kSmallScales>
class Fp8Loader {
 public:
  Fp8Loader(const Weight& w, const float* scales, int64_t o)
      : rows_(static_cast<const uint8_t*>(w.data) + o * w.in), in_(w.in), scales_(scales) {}
  void BeginGroup(int c, int64_t g) {
    // A NaN makes its whole sum NaN, so the group's scale may carry it, and Load needs no look at single codes.
    const bool has_nan = HasNan(rows_ + c * in_ + g * kGroup);
    scale_[c] = hn::Set(FloatTag(), has_nan ? std::numeric_limits<float>::quiet_NaN() : scales_[g]);
  }
  FloatVec Load(int c, int64_t, int64_t k) const {
    const FloatTag d;
    const hn::Rebind<int32_t, FloatTag> d32;
    const hn::Rebind<int8_t, FloatTag> d8;
    const int8_t* codes = reinterpret_cast<const int8_t*>(rows_ + c * in_ + k);
    // The sign is extended over what the shift leaves of the exponent. See E4M3ToFloat: the bits land 2^120 too low.
    const auto shifted = hn::ShiftLeft<20>(hn::PromoteTo(d32, hn::LoadU(d8, codes)));
    const auto bits = hn::And(shifted, hn::Set(d32, static_cast<int32_t>(0x87f00000U)));
    const FloatVec value = hn::BitCast(d, bits);
    return hn::Mul(kSmallScales ? value : hn::Mul(value, hn::Set(d, 0x1p120F)), scale_[c]);
  }
  FloatVec LoadTail(int, int64_t, size_t) const { return hn::Zero(FloatTag()); }

 private:
  static bool HasNan(const uint8_t* codes) {
    const hn::CappedTag<uint8_t, kGroup> d8;
    const auto all_ones = hn::Set(d8, uint8_t{0x7f});
    bool found = false;
    for (size_t i = 0; i < kGroup; i += hn::Lanes(d8)) {
      const auto magnitude = hn::And(hn::LoadU(d8, codes + i), all_ones);
      found |= !hn::AllFalse(d8, hn::Eq(magnitude, all_ones));
    }
    return found;
  }

  const uint8_t* rows_;
  int64_t in_;
  const float* scales_;
  FloatVec scale_[kTileOutputs];
};

class Fp4Loader {
 public:
  Fp4Loader(const Weight& w, int64_t o)
      : weight_(w), rows_(static_cast<const uint8_t*>(w.data) + o * (w.in / 2)), first_(o) {}
  void BeginGroup(int c, int64_t g) {
    // Twice the e2m1 values, so that they are integers.
    alignas(16) static constexpr int8_t kDoubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                        0, -1, -2, -3, -4, -6, -8, -12};
    const uint8_t* packed = rows_ + c * (weight_.in / 2) + g * (kGroup / 2);
#if HWY_TARGET == HWY_SCALAR  // Highway's scalar target has no byte shuffles
    for (int64_t i = 0; i < kGroup / 2; ++i) {
      codes_[c][2 * i] = kDoubled[packed[i] & 15];
      codes_[c][2 * i + 1] = kDoubled[packed[i] >> 4];
    }
#else
    const hn::Full128<uint8_t> d8;
    const auto table = hn::Load(d8, reinterpret_cast<const uint8_t*>(kDoubled));
    const auto pairs = hn::LoadU(d8, packed);
    const auto even = hn::And(pairs, hn::Set(d8, uint8_t{15}));
    const auto odd =
        hn::BitCast(d8, hn::And(hn::ShiftRight<4>(hn::BitCast(hn::Full128<uint16_t>(), pairs)),
                                hn::Set(hn::Full128<uint16_t>(), uint16_t{0x0f0f})));
    uint8_t* out = reinterpret_cast<uint8_t*>(codes_[c]);
    hn::Store(hn::TableLookupBytes(table, hn::InterleaveLower(d8, even, odd)), d8, out);
    hn::Store(hn::TableLookupBytes(table, hn::InterleaveUpper(d8, even, odd)), d8, out + 16);
#endif
    const uint8_t scale = weight_.scale[(first_ + c) * (weight_.in / kGroup) + g];
    scale_[c] = hn::Set(FloatTag(), 0.5F * E8M0ToFloat(scale));
  }
  FloatVec Load(int c, int64_t i, int64_t) const {
    const FloatTag d;
    const hn::Rebind<int8_t, FloatTag> d8;
    const hn::Rebind<int32_t, FloatTag> d32;
    const auto codes = hn::LoadU(d8, codes_[c] + i * kLanes);
    return hn::Mul(hn::ConvertTo(d, hn::PromoteTo(d32, codes)), scale_[c]);
  }
  FloatVec LoadTail(int, int64_t, size_t) const { return hn::Zero(FloatTag()); }

 private:
  const Weight& weight_;
  const uint8_t* rows_;
  int64_t first_;
  FloatVec scale_[kTileOutputs];
  alignas(64) int8_t codes_[kTileOutputs][kGroup];
};

// One register tile: R rows of x times the C weight rows behind the loader's first F.
template <int R, int F, int C, typename Loader>
void Tile(Loader& loader, const float* const* x, float* const* y, int64_t o, int64_t in) {
  const FloatTag d;
  FloatVec acc[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) acc[r][c] = hn::Zero(d);
  }
  const int64_t groups = in / kGroup;
  for (int64_t g = 0; g < groups; ++g) {
    for (int c = 0; c < C; ++c) loader.BeginGroup(F + c, g);
    for (int64_t i = 0; i < kGroup / kLanes; ++i) {
      const int64_t k = g * kGroup + i * kLanes;
      FloatVec w[C];
      for (int c = 0; c < C; ++c) w[c] = loader.Load(F + c, i, k);
      for (int r = 0; r < R; ++r) {
        const FloatVec v = hn::LoadU(d, x[r] + k);
        for (int c = 0; c < C; ++c) acc[r][c] = hn::MulAdd(v, w[c], acc[r][c]);
      }
    }
  }
  for (int64_t k = groups * kGroup; k < in; k += kLanes) {
    const size_t n = static_cast<size_t>(std::min(kLanes, in - k));
    for (int r = 0; r < R; ++r) {
      const FloatVec v = hn::MaskedLoad(hn::FirstN(d, n), d, x[r] + k);
      for (int c = 0; c < C; ++c) {
        acc[r][c] = hn::MulAdd(v, loader.LoadTail(F + c, k, n), acc[r][c]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) y[r][o + F + c] = hn::GetLane(hn::SumOfLanes(d, acc[r][c]));
  }
}

// R rows times C weight rows, in one tile or in two.
template <int R, int C, typename Loader>
void Tiles(Loader& loader, const float* const* x, float* const* y, int64_t o, int64_t in) {
  if constexpr (C <= TileOutputs(R)) {
    Tile<R, 0, C>(loader, x, y, o, in);
  } else {
    static_assert(C == 2 * TileOutputs(R));
    Tile<R, 0, C / 2>(loader, x, y, o, in);
    Tile<R, C / 2, C / 2>(loader, x, y, o, in);
  }
}

template <int C, typename Loader>
void TileRows(Loader& loader, const float* const* x, float* const* y, int64_t rows, int64_t o,
              int64_t in) {
  switch (rows) {
    case 1: return Tiles<1, C>(loader, x, y, o, in);
    case 2: return Tiles<2, C>(loader, x, y, o, in);
    case 3: return Tiles<3, C>(loader, x, y, o, in);
    case 4: return Tiles<4, C>(loader, x, y, o, in);
    case 5: return Tiles<5, C>(loader, x, y, o, in);
    default: return Tiles<6, C>(loader, x, y, o, in);
  }
}

// Fills `out` [C, in] with fp32 weights, for calls with so many rows that decoding once per row block would dominate.
template <int C, typename Loader>
void DecodeTile(Loader& loader, int64_t in, float* out) {
  const FloatTag d;
  const int64_t groups = in / kGroup;
  for (int64_t g = 0; g < groups; ++g) {
    for (int c = 0; c < C; ++c) {
      loader.BeginGroup(c, g);
      for (int64_t i = 0; i < kGroup / kLanes; ++i) {
        const int64_t k = g * kGroup + i * kLanes;
        hn::StoreU(loader.Load(c, i, k), d, out + c * in + k);
      }
    }
  }
  for (int64_t k = groups * kGroup; k < in; k += kLanes) {
    const size_t n = static_cast<size_t>(std::min(kLanes, in - k));
    for (int c = 0; c < C; ++c) {
      hn::BlendedStore(loader.LoadTail(c, k, n), hn::FirstN(d, n), d, out + c * in + k);
    }
  }
}

template <int C, typename Loader>
void Outputs(Loader& loader, const float* const* x, float* const* y, int64_t rows, int64_t o,
             int64_t in, float* decoded) {
  if (decoded != nullptr) {
    DecodeTile<C>(loader, in, decoded);
    F32Loader plain(decoded, in);
    for (int64_t r = 0; r < rows; r += kTileRows) {
      TileRows<C>(plain, x + r, y + r, std::min<int64_t>(kTileRows, rows - r), o, in);
    }
    return;
  }
  for (int64_t r = 0; r < rows; r += kTileRows) {
    TileRows<C>(loader, x + r, y + r, std::min<int64_t>(kTileRows, rows - r), o, in);
  }
}

template <typename MakeLoader>
void Range(MakeLoader make, const float* const* x, float* const* y, int64_t rows, int64_t o_begin,
           int64_t o_end, int64_t in, float* decoded) {
  int64_t o = o_begin;
  for (; o + kTileOutputs <= o_end; o += kTileOutputs) {
    auto loader = make(o);
    Outputs<kTileOutputs>(loader, x, y, rows, o, in, decoded);
  }
  for (; o < o_end; ++o) {
    auto loader = make(o);
    Outputs<1>(loader, x, y, rows, o, in, decoded);
  }
}

// 2^120 * scale is a number as long as the scale is at most 2^7.
bool ScalesAreSmall(const uint8_t* scales, int64_t count) {
  constexpr uint8_t kLargest = 127 + 7;
  return std::all_of(scales, scales + count, [](uint8_t code) { return code <= kLargest; });
}

void Fp8Range(const Weight& w, const float* const* x, float* const* y, int64_t rows,
              int64_t o_begin, int64_t o_end, float* decoded, float* scales) {
  const int64_t tiles = CeilDiv<int64_t>(w.in, w.block);
  for (int64_t o = o_begin; o < o_end;) {
    const int64_t tile_row = o / w.block;
    const int64_t stop = Min(o_end, (tile_row + 1) * w.block);
    const uint8_t* codes = w.scale + tile_row * tiles;
    const bool small = ScalesAreSmall(codes, tiles);
    const int64_t tile_groups = w.block / kGroup;
    for (int64_t t = 0; t < tiles; ++t) {
      const float scale = E8M0ToFloat(codes[t]) * (small ? 0x1p120F : 1.0F);
      const int64_t end = Min((t + 1) * tile_groups, w.in / kGroup);
      for (int64_t g = t * tile_groups; g < end; ++g) scales[g] = scale;
    }
    const auto range = [&](auto make) { Range(make, x, y, rows, o, stop, w.in, decoded); };
    if (small) {
      range([&](int64_t first) { return Fp8Loader<true>(w, scales, first); });
    } else {
      range([&](int64_t first) { return Fp8Loader<false>(w, scales, first); });
    }
    o = stop;
  }
}

void GemmRowsImpl(const Weight& w, const float* const* x, float* const* y, int64_t rows,
                  int64_t o_begin, int64_t o_end, float* decoded, float* scales) {
  switch (w.dtype) {
    case DType::kF32:
      return Range(
          [&](int64_t o) { return F32Loader(static_cast<const float*>(w.data) + o * w.in, w.in); },
          x, y, rows, o_begin, o_end, w.in, nullptr);
    case DType::kBf16:
      return Range([&](int64_t o) { return Bf16Loader(w, o); }, x, y, rows, o_begin, o_end, w.in,
                   decoded);
    case DType::kF8E4M3: return Fp8Range(w, x, y, rows, o_begin, o_end, decoded, scales);
    case DType::kF4E2M1x2:
      return Range([&](int64_t o) { return Fp4Loader(w, o); }, x, y, rows, o_begin, o_end, w.in,
                   decoded);
    default: FIRESTEEL_CHECK(false, "linear cannot decode this weight type");
  }
}

}  // namespace firesteel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace firesteel {

HWY_EXPORT(GemmRowsImpl);

namespace {
// Decoding a tile into memory pays once it serves about three row blocks.
constexpr int64_t kDecodeOnceRows = 12;
constexpr int64_t kMinMultipliesPerWorker = 32768;
constexpr int64_t kColumnsPerScale = 32;  // at least: kGroup
}  // namespace

void GemmRows(const Weight& weight, const float* const* x, float* const* y, int64_t rows,
              int64_t o_begin, int64_t o_end, WorkerScratch& scratch) {
  const size_t mark = scratch.Mark();
  float* decoded = rows > kDecodeOnceRows ? scratch.Floats(int64_t{4} * weight.in) : nullptr;
  float* scales =
      weight.dtype == DType::kF8E4M3 ? scratch.Floats(weight.in / kColumnsPerScale) : nullptr;
  HWY_DYNAMIC_DISPATCH(GemmRowsImpl)(weight, x, y, rows, o_begin, o_end, decoded, scales);
  scratch.Rewind(mark);
}

int64_t GemmGrain(const Weight& weight, int64_t rows) {
  const int64_t outputs =
      kMinMultipliesPerWorker / (Max<int64_t>(weight.in, 1) * Max<int64_t>(rows, 1));
  return RoundUp(Max<int64_t>(outputs, 4), int64_t{4});
}

}  // namespace firesteel
#endif  // HWY_ONCE
