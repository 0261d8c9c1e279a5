// Sparse attention of 512-wide heads on the warp-level tensor cores, over bf16 or fp8 cache rows read in place.
//
// A block serves 16 * kQueryTiles (row, head) queries of one key list. Keys come in tiles of 64 list entries, the window's
// list first; tiles start anew at the extra list. Per tile: decode 64 rows to bf16 in shared memory (exact: an fp8 code times
// a power of two); S = Q K^T with 8 keys a warp; softmax with two queries a warp and query tile; O += P K with 64 columns a
// warp. The next tile's bytes are on their way meanwhile.
//
// kParts bf16 parts carry a query and a probability: 3 for fp32 queries (all 24 bits), 1 for bf16. The denominator adds
// the probabilities as the product sees them. A row's bits depend on its query and its list, not on kQueryTiles or the grid.
#pragma once

#include <cmath>

#include "kernels/core/math.h"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/row_access.cuh"
#include "kernels/ops/kv_record.h"
#include "kernels/ops/sparse_attention/sparse_attention.h"

namespace firesteel::mma_attention {

inline constexpr int kHeadDim = 512;
inline constexpr int kRope = 64;
inline constexpr int kWarps = 8;
inline constexpr int kThreads = kWarps * kWarpSize;
inline constexpr int kTileKeys = 64;
inline constexpr int kTileQueries = 16;
inline constexpr int kKeysPerWarp = kTileKeys / kWarps;
inline constexpr int kColumnsPerWarp = kHeadDim / kWarps;
inline constexpr int kColumnTiles = kColumnsPerWarp / 8;
inline constexpr int kStep = 16;  // depth of one tensor-core product
// Row strides in shared memory, padded by 16 bytes so that eight rows of a matrix load hit different banks.
inline constexpr int kKeyStride = kHeadDim + 8;
inline constexpr int kProbabilityStride = kTileKeys + 8;
inline constexpr int kThreadsPerKey = kThreads / kTileKeys;

template <int kParts, int kQueryTiles>
struct Shared {
  static constexpr int kQueries = kTileQueries * kQueryTiles;
  uint16_t keys[kTileKeys][kKeyStride];
  uint16_t q[kParts][kQueries][kKeyStride];
  uint16_t p[kParts][kQueries][kProbabilityStride];
  float scores[kQueries][kProbabilityStride];
  float scale[kQueries];  // factor of the sums so far, then of the result
};

// The stored bytes of a key that one thread decodes: 16-byte chunks thread, thread + 4, ... of the row.
template <KvFormat kFormat>
struct RawKey {
  static constexpr int kRowBytes =
      kFormat == KvFormat::kFp8 ? (kHeadDim - kRope) + 2 * kRope : 2 * kHeadDim;
  static constexpr int kChunks = kRowBytes / 16 / kThreadsPerKey;
  uint4 chunk[kChunks];
  uint2 scales;  // fp8: one ue8m0 byte for each 64 codes, so chunk i has scale byte i
};

template <KvFormat kFormat>
__device__ void LoadRaw(const KvPages& pages, const int32_t* index, int32_t count,
                        RawKey<kFormat>& raw) {
  const int key = static_cast<int>(threadIdx.x) / kThreadsPerKey;
  const int part = static_cast<int>(threadIdx.x) % kThreadsPerKey;
  // Rows past the list are zeros: their probability is zero, and zero times what was left there need not be.
#pragma unroll
  for (int i = 0; i < RawKey<kFormat>::kChunks; ++i) raw.chunk[i] = uint4{0, 0, 0, 0};
  raw.scales = uint2{0, 0};
  if (key >= count) return;
  const int64_t row = index[key];
  const auto* data = reinterpret_cast<const uint4*>(KvRowData(pages, row));
#pragma unroll
  for (int i = 0; i < RawKey<kFormat>::kChunks; ++i) {
    raw.chunk[i] = __ldg(data + part + kThreadsPerKey * i);
  }
  if constexpr (kFormat == KvFormat::kFp8) {
    raw.scales = __ldg(reinterpret_cast<const uint2*>(KvRowScale(pages, row)));
  }
}

// Four e4m3 codes times 2^(scale - 127) as two exact bf16 pairs.
__device__ inline uint2 DecodeCodes(uint32_t codes, uint32_t scale_pair) {
  constexpr uint32_t kOffset = 0x7b807b80U;  // 2^120 twice: e4m3's exponent bias moved to bf16's
  const auto pair = [&](uint32_t two) {
    const uint32_t spread = (two & 0xffU) | ((two & 0xff00U) << 8);
    const uint32_t bits = ((spread & 0x00800080U) << 8) | ((spread & 0x007f007fU) << 4);
    return ScalePair(bits, kOffset, scale_pair);
  };
  return {pair(codes), pair(codes >> 16)};
}

template <KvFormat kFormat>
__device__ void StoreKeys(const RawKey<kFormat>& raw, uint16_t (*keys)[kKeyStride]) {
  const int key = static_cast<int>(threadIdx.x) / kThreadsPerKey;
  const int part = static_cast<int>(threadIdx.x) % kThreadsPerKey;
  constexpr int kCodeChunks =
      kFormat == KvFormat::kFp8 ? (kHeadDim - kRope) / 16 / kThreadsPerKey : 0;
#pragma unroll
  for (int i = 0; i < kCodeChunks; ++i) {
    const uint32_t byte = (i < 4 ? raw.scales.x >> (8 * i) : raw.scales.y >> (8 * (i - 4))) & 0xffU;
    const uint32_t scale = E8M0Pair(byte);
    const uint2 a = DecodeCodes(raw.chunk[i].x, scale);
    const uint2 b = DecodeCodes(raw.chunk[i].y, scale);
    const uint2 c = DecodeCodes(raw.chunk[i].z, scale);
    const uint2 d = DecodeCodes(raw.chunk[i].w, scale);
    auto* to = reinterpret_cast<uint4*>(&keys[key][(part + kThreadsPerKey * i) * 16]);
    to[0] = uint4{a.x, a.y, b.x, b.y};
    to[1] = uint4{c.x, c.y, d.x, d.y};
  }
#pragma unroll
  for (int i = kCodeChunks; i < RawKey<kFormat>::kChunks; ++i) {
    const int column =
        kCodeChunks * kThreadsPerKey * 16 + (part + kThreadsPerKey * (i - kCodeChunks)) * 8;
    *reinterpret_cast<uint4*>(&keys[key][column]) = raw.chunk[i];
  }
}

// Splits the block's queries into bf16 planes; queries past the end are zeros.
template <int kParts, int kQueryTiles>
__device__ void LoadQueries(const SparseAttentionArgs& a, int64_t first_row, int32_t first_query,
                            int32_t queries, Shared<kParts, kQueryTiles>& s) {
  constexpr int kPairs = kHeadDim / 2;
  for (int i = static_cast<int>(threadIdx.x); i < Shared<kParts, kQueryTiles>::kQueries * kPairs;
       i += kThreads) {
    const int row = i / kPairs;
    const int column = i % kPairs * 2;
    const int32_t query = first_query + row;
    float low = 0.0F;
    float high = 0.0F;
    if (query < queries) {
      const int64_t at = int64_t{query % a.heads} * kHeadDim + column;
      low = LoadElement(a.q, first_row + query / a.heads, at);
      high = LoadElement(a.q, first_row + query / a.heads, at + 1);
    }
    uint32_t part[kParts];
    SplitBf16(low, high, part);
#pragma unroll
    for (int p = 0; p < kParts; ++p) *reinterpret_cast<uint32_t*>(&s.q[p][row][column]) = part[p];
  }
}

// Scores of 8 keys a warp for every query of the block.
template <int kParts, int kQueryTiles>
__device__ void ScoreTile(float scale, Shared<kParts, kQueryTiles>& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int g = lane / 4;
  const int t = lane % 4;
  float acc[kQueryTiles][4] = {};
  const uint16_t* key = &s.keys[warp * kKeysPerWarp + g][2 * t];
#pragma unroll 4
  for (int k = 0; k < kHeadDim; k += kStep) {
    const uint32_t b0 = *reinterpret_cast<const uint32_t*>(key + k);
    const uint32_t b1 = *reinterpret_cast<const uint32_t*>(key + k + 8);
#pragma unroll
    for (int m = 0; m < kQueryTiles; ++m) {
      // The smallest part first.
#pragma unroll
      for (int p = kParts - 1; p >= 0; --p) {
        uint32_t fragment[4];
        LoadMatrices(fragment, &s.q[p][m * kTileQueries + lane % 16][k + lane / 16 * 8]);
        MmaBf16(acc[m], fragment, b0, b1);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kQueryTiles; ++m) {
    const int column = warp * kKeysPerWarp + 2 * t;
    *reinterpret_cast<float2*>(&s.scores[m * kTileQueries + g][column]) =
        float2{acc[m][0] * scale, acc[m][1] * scale};
    *reinterpret_cast<float2*>(&s.scores[m * kTileQueries + g + 8][column]) =
        float2{acc[m][2] * scale, acc[m][3] * scale};
  }
}

// Running softmax of the warp's two queries of each tile, the same in every lane.
template <int kQueryTiles>
struct Softmax {
  float top[kQueryTiles][2];
  float sum[kQueryTiles][2];
};

template <int kParts, int kQueryTiles>
__device__ void Probabilities(int32_t count, Softmax<kQueryTiles>& state,
                              Shared<kParts, kQueryTiles>& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
#pragma unroll
  for (int m = 0; m < kQueryTiles; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = m * kTileQueries + 2 * warp + i;
      const float2 score = *reinterpret_cast<const float2*>(&s.scores[query][2 * lane]);
      const float low = 2 * lane < count ? score.x : -INFINITY;
      const float high = 2 * lane + 1 < count ? score.y : -INFINITY;
      const float top = Max(state.top[m][i], WarpReduce(Max(low, high), MaxOp{}));
      // All scores so far are -infinity: nothing is weighted yet.
      const bool none = top == -INFINITY;
      uint32_t part[kParts];
      SplitBf16(none ? 0.0F : expf(low - top), none ? 0.0F : expf(high - top), part);
      float weight = 0.0F;
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        *reinterpret_cast<uint32_t*>(&s.p[p][query][2 * lane]) = part[p];
        weight += LowBf16(part[p]) + HighBf16(part[p]);
      }
      const float rescale = none ? 0.0F : expf(state.top[m][i] - top);
      state.sum[m][i] = state.sum[m][i] * rescale + WarpReduce(weight, AddOp{});
      state.top[m][i] = top;
      if (lane == 0) s.scale[query] = rescale;
    }
  }
}

// acc = acc * scale + P K for the warp's 64 columns.
template <int kParts, int kQueryTiles>
__device__ void WeightTile(const Shared<kParts, kQueryTiles>& s,
                           float (&acc)[kQueryTiles][kColumnTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int g = lane / 4;
#pragma unroll
  for (int m = 0; m < kQueryTiles; ++m) {
    const float upper = s.scale[m * kTileQueries + g];
    const float lower = s.scale[m * kTileQueries + g + 8];
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      acc[m][n][0] *= upper;
      acc[m][n][1] *= upper;
      acc[m][n][2] *= lower;
      acc[m][n][3] *= lower;
    }
  }
#pragma unroll
  for (int k = 0; k < kTileKeys; k += kStep) {
    uint32_t fragment[kQueryTiles][kParts][4];
#pragma unroll
    for (int m = 0; m < kQueryTiles; ++m) {
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        LoadMatrices(fragment[m][p], &s.p[p][m * kTileQueries + lane % 16][k + lane / 16 * 8]);
      }
    }
#pragma unroll
    for (int n = 0; n < kColumnTiles; n += 2) {
      // Keys k .. k + 15 of 16 columns: two products' worth of transposed operands.
      uint32_t b[4];
      LoadMatricesTransposed(
          b, &s.keys[k + lane % 16][warp * kColumnsPerWarp + n * 8 + lane / 16 * 8]);
#pragma unroll
      for (int m = 0; m < kQueryTiles; ++m) {
#pragma unroll
        for (int p = kParts - 1; p >= 0; --p) {
          MmaBf16(acc[m][n], fragment[m][p], b[0], b[1]);
          MmaBf16(acc[m][n + 1], fragment[m][p], b[2], b[3]);
        }
      }
    }
  }
}

// Tiles of both lists in order: where the next one's keys are.
struct TileCursor {
  int pool = 0;
  int32_t first = 0;
};

// Grid: (query groups of a list, lists). Queries of a list are its rows times the heads, rows outermost.
template <int kParts, KvFormat kFormat, int kQueryTiles>
__global__ void __launch_bounds__(kThreads)
    AttendKernel(const __grid_constant__ SparseAttentionArgs a) {
  extern __shared__ uint4 memory[];
  auto& s = *reinterpret_cast<Shared<kParts, kQueryTiles>*>(memory);
  constexpr int kQueries = Shared<kParts, kQueryTiles>::kQueries;
  const int64_t list = blockIdx.y;
  const int64_t live = Min(*a.live, a.rows);
  const int64_t first_row = list * a.rows_per_list;
  if (first_row >= live) return;
  const int32_t queries =
      static_cast<int32_t>(Min<int64_t>(a.rows_per_list, live - first_row)) * a.heads;
  const int32_t first_query = static_cast<int32_t>(blockIdx.x) * kQueries;
  if (first_query >= queries) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;

  const int32_t valid[2] = {a.window_rows.valid[list],
                            a.extra_rows.valid == nullptr ? 0 : a.extra_rows.valid[list]};
  TileCursor next;
  const auto skip_empty = [&] {
    while (next.pool < 2 && next.first >= valid[next.pool]) next = {next.pool + 1, 0};
  };
  // Starts loading the next tile; its number of keys, 0 when there is none.
  RawKey<kFormat> raw;
  const auto load_next = [&]() -> int32_t {
    skip_empty();
    if (next.pool == 2) return 0;
    const int32_t count = Min(kTileKeys, valid[next.pool] - next.first);
    if (next.pool == 0) {
      LoadRaw<kFormat>(a.window, a.window_rows.index + list * a.window_rows.width + next.first,
                       count, raw);
    } else {
      LoadRaw<kFormat>(a.extra, a.extra_rows.index + list * a.extra_rows.width + next.first, count,
                       raw);
    }
    next.first += kTileKeys;
    return count;
  };

  int32_t count = load_next();
  LoadQueries(a, first_row, first_query, queries, s);
  Softmax<kQueryTiles> state;
#pragma unroll
  for (int m = 0; m < kQueryTiles; ++m) {
    for (int i = 0; i < 2; ++i) {
      state.top[m][i] = -INFINITY;
      state.sum[m][i] = 0.0F;
    }
  }
  float acc[kQueryTiles][kColumnTiles][4] = {};
  while (count > 0) {
    StoreKeys<kFormat>(raw, s.keys);
    const int32_t following = load_next();
    __syncthreads();
    ScoreTile(a.scale, s);
    __syncthreads();
    Probabilities(count, state, s);
    __syncthreads();
    WeightTile(s, acc);
    __syncthreads();  // the keys may be overwritten
    count = following;
  }

  if (lane == 0) {
#pragma unroll
    for (int m = 0; m < kQueryTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int query = m * kTileQueries + 2 * warp + i;
        const float sink = a.sink[(first_query + query) % a.heads];
        // The sink joins the denominator only. It may be the largest of all; an infinite one leaves nothing to the keys.
        const float top = Max(state.top[m][i], sink);
        float factor = 0.0F;
        if (state.top[m][i] != -INFINITY && sink != INFINITY) {
          const float shrink = expf(state.top[m][i] - top);
          factor = shrink / (state.sum[m][i] * shrink + expf(sink - top));
        }
        s.scale[query] = factor;
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kQueryTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int local = m * kTileQueries + lane / 4 + 8 * half;
      const int32_t query = first_query + local;
      if (query >= queries) continue;
      const float factor = s.scale[local];
      const int64_t row = first_row + query / a.heads;
      const int64_t first_column = int64_t{query % a.heads} * kHeadDim + warp * kColumnsPerWarp;
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const int64_t column = first_column + n * 8 + lane % 4 * 2;
        StoreElement(a.out, row, column, acc[m][n][2 * half] * factor);
        StoreElement(a.out, row, column + 1, acc[m][n][2 * half + 1] * factor);
      }
    }
  }
}

// Whether these pages hold rows that the kernel decodes.
inline bool ServesPages(const KvPages& pages, KvFormat format) {
  return pages.format == format && pages.width == kHeadDim &&
         (format == KvFormat::kBf16 || (format == KvFormat::kFp8 && pages.rope == kRope)) &&
         reinterpret_cast<uintptr_t>(pages.data) % 16 == 0 && pages.page_bytes % 16 == 0;
}

inline bool Serves(const SparseAttentionArgs& a) {
  return a.head_dim == kHeadDim && ServesPages(a.window, a.window.format) &&
         (a.extra_rows.valid == nullptr || ServesPages(a.extra, a.window.format));
}

}  // namespace firesteel::mma_attention
