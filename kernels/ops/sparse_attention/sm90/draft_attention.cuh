// Attention of draft blocks on Hopper: every query row of a request reads the same short key list (up to 136 keys: a
// window of 128 and the block). One CTA decodes the list once; its two groups of 256 threads then serve tiles of N query
// rows (block rows x heads) in turn, each waiting while the other computes.
//
// Scores are S^T = K Q^T and the output O^T = V^T P^T, so that N query rows fill the matrix unit without padding:
//   1. all 512 threads gather the listed rows, decode them to bf16 and place them in eight swizzled slabs of 64 columns;
//      rows past `valid` are zeroed. The first query rows arrive by cp.async meanwhile.
//   2. of a group's two warpgroups the first computes the scores of key rows 0..63 and 72..135 (rows up to 127 of the
//      latter are masked: that avoids padding the list to 192 rows of shared memory), the second those of rows 64..127.
//   3. softmax over keys, in one fixed order: the warps of keys 0..127, the last rows, the sink. P^T replaces the queries.
//   4. each warpgroup multiplies four of the eight 64-wide column blocks of V^T with P^T; the output replaces P^T, rows
//      are normalised on the way and stored whole.
// A query row's arithmetic does not depend on N, the batch or the neighbours, so the host may choose N by the batch.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/sm90/kv_convert.cuh"
#include "kernels/cuda/sm90/shared_access.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"
#include "kernels/ops/kv_record.h"

namespace firesteel::sm90 {

constexpr int kDraftKeys = 136;  // list capacity: a window of 128 and a block of up to 8
constexpr int kHeadDim = 512;
constexpr int kSlabs = kHeadDim / kSlabCols;
constexpr int kDraftThreads = 512;

struct DraftAttentionParams {
  const __nv_bfloat16* q;    // [lists * rows_per_list, heads, 512]
  __nv_bfloat16* out;        // the same shape
  const std::byte* pages;    // window pool
  const int32_t* index;      // [lists, width]
  const int32_t* valid;      // [lists] at most kDraftKeys
  const float* sink;         // [heads]
  const int32_t* live_rows;  // [1] query rows that are live
  int64_t page_bytes;
  int32_t block_entries;
  int32_t width;
  int32_t rows_per_list;
  int32_t heads;
  int32_t tile_rows;
  int32_t tiles;  // of one list
  int32_t tiles_per_cta;
  float scale;
};

constexpr int kGroupThreads = kDraftThreads / 2;
constexpr int kReduceRows = 9;  // eight warps of keys 0..127, and the warp of the last rows

template <int N>
struct DraftShared {
  static constexpr int kKeyBytes = kSlabs * kDraftKeys * kSlabRowBytes;
  // Queries of one tile, then P^T, then the output: N rows of 1,024 bytes each time. One per group.
  static constexpr int kTileBytes = N * kHeadDim * 2;
  static constexpr int kReduceFloats = (kReduceRows + 2) * N;
  static constexpr int Total(int groups) {
    return kKeyBytes + groups * (kTileBytes + kReduceFloats * 4);
  }
};

// Where the N = rows x kTileHeads query rows of a tile are: column n is row n / kTileHeads, head n % kTileHeads.
template <int kTileHeads>
struct TileRows {
  int first_head;
  int64_t first;  // offset of column 0 in values
  int32_t row_stride;

  __device__ __forceinline__ TileRows(const DraftAttentionParams& p, int tile)
      : row_stride(p.heads * kHeadDim) {
    const int row_tiles = p.rows_per_list / p.tile_rows;
    const int head_tile = tile / row_tiles;
    const int row = (tile - head_tile * row_tiles) * p.tile_rows;
    first_head = head_tile * kTileHeads;
    first = (static_cast<int64_t>(blockIdx.y) * p.rows_per_list + row) * row_stride +
            first_head * kHeadDim;
  }
  __device__ __forceinline__ int64_t At(int n) const {
    return first + n / kTileHeads * row_stride + n % kTileHeads * kHeadDim;
  }
};

// Where one listed row is stored.
struct RowPlace {
  const std::byte* data;
  const std::byte* scale;
  __device__ __forceinline__ RowPlace(const DraftAttentionParams& p, int list, int key,
                                      int row_bytes) {
    const int32_t row = __ldcg(p.index + static_cast<int64_t>(list) * p.width + key);
    const int32_t page = row / p.block_entries;
    const int32_t entry = row - page * p.block_entries;
    const std::byte* base = p.pages + page * p.page_bytes;
    data = base + entry * row_bytes;
    scale = base + p.block_entries * row_bytes + entry * 8;
  }
};

// One CTA's share of the fp8 rows, 16 bytes at a time. A row is 36 pieces: 28 of sixteen codes, 8 of eight bf16. Each
// thread keeps one row and one piece of four and walks over the nine groups of four pieces, so that addresses are found
// once; eight neighbouring threads take four pieces of two neighbouring rows: with the swizzle their stores then hit all
// banks once. The last eight rows are one more piece for some threads.
struct Fp8Gather {
  static constexpr int kMainKeys = kDraftThreads / 4;
  static constexpr int kTailKeys = kDraftKeys - kMainKeys;
  static constexpr int kSlabBytes = kDraftKeys * kSlabRowBytes;

  uint4 raw[9];
  uint2 scales;  // the row's eight scale bytes
  uint4 tail;
  uint32_t tail_scale;

  static __device__ __forceinline__ int Key() { return threadIdx.x / 8 * 2 + threadIdx.x % 8 / 4; }

  __device__ __forceinline__ void Load(const DraftAttentionParams& p, int list, int valid) {
    const int piece = threadIdx.x % 4;
    const int tail_key = kMainKeys + threadIdx.x / 36;
    const int tail_piece = threadIdx.x % 36;
#pragma unroll
    for (int g = 0; g < 9; ++g) raw[g] = make_uint4(0, 0, 0, 0);
    scales = make_uint2(0, 0);
    tail = make_uint4(0, 0, 0, 0);
    tail_scale = 0;
    if (Key() < valid) {
      const RowPlace row(p, list, Key(), 576);
#pragma unroll
      for (int g = 0; g < 9; ++g) raw[g] = LoadStreaming(row.data + g * 64 + piece * 16);
      scales = __ldcg(reinterpret_cast<const uint2*>(row.scale));
    }
    if (tail_key < valid) {  // never past the list: valid <= kDraftKeys
      const RowPlace row(p, list, tail_key, 576);
      tail = LoadStreaming(row.data + tail_piece * 16);
      if (tail_piece < 28)
        tail_scale = __ldcg(reinterpret_cast<const uint8_t*>(row.scale) + tail_piece / 4);
    }
  }

  static __device__ __forceinline__ void StoreCodes(uint32_t slab, int key, int piece,
                                                    const uint4& codes, uint32_t scale) {
    uint4 low, high;
    DecodeE4M3x16(codes, scale, &low, &high);
    StoreShared16(slab + SlabOffset(key, piece * 2), low);
    StoreShared16(slab + SlabOffset(key, piece * 2 + 1), high);
  }

  __device__ __forceinline__ void Store(uint32_t keys) const {
    const int piece = threadIdx.x % 4;
#pragma unroll
    for (int g = 0; g < 7; ++g) {
      const uint32_t scale = __byte_perm(scales.x, scales.y, 0x4440 + g) & 0xffU;
      StoreCodes(keys + g * kSlabBytes, Key(), piece, raw[g], scale);
    }
    StoreShared16(keys + 7 * kSlabBytes + SlabOffset(Key(), piece), raw[7]);
    StoreShared16(keys + 7 * kSlabBytes + SlabOffset(Key(), 4 + piece), raw[8]);
    if (threadIdx.x < kTailKeys * 36) {
      const int tail_key = kMainKeys + threadIdx.x / 36;
      const int tail_piece = threadIdx.x % 36;
      if (tail_piece < 28) {
        StoreCodes(keys + tail_piece / 4 * kSlabBytes, tail_key, tail_piece % 4, tail, tail_scale);
      } else {
        StoreShared16(keys + 7 * kSlabBytes + SlabOffset(tail_key, tail_piece - 28), tail);
      }
    }
  }
};

// bf16 rows go to shared memory directly: each warp takes whole rows.
__device__ __forceinline__ void GatherBf16(const DraftAttentionParams& p, int list, uint32_t keys,
                                           int valid) {
  const int lane = threadIdx.x % 32;
  for (int key = threadIdx.x / 32; key < kDraftKeys; key += kDraftThreads / 32) {
    const uint32_t low = keys + (lane / 8) * Fp8Gather::kSlabBytes + SlabOffset(key, lane % 8);
    const uint32_t high = low + 4 * Fp8Gather::kSlabBytes;
    if (key < valid) {
      const RowPlace row(p, list, key, 1024);
      CopyAsync16(low, row.data + lane * 16);
      CopyAsync16(high, row.data + 512 + lane * 16);
    } else {
      StoreShared16(low, make_uint4(0, 0, 0, 0));
      StoreShared16(high, make_uint4(0, 0, 0, 0));
    }
  }
}

// Scores of one warpgroup's 64 key rows; asynchronous. Descriptors hold addresses in 16-byte units in their low word.
template <int N>
__device__ __forceinline__ void EnqueueScores(float (&s)[N / 2], uint64_t keys, uint64_t queries) {
  WgmmaFence();
#pragma unroll
  for (int slab = 0; slab < kSlabs; ++slab) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Wgmma<N, false>::Run(s, keys + (slab * Fp8Gather::kSlabBytes + k * 32) / 16,
                           queries + (slab * N * kSlabRowBytes + k * 32) / 16, slab + k > 0);
    }
  }
  WgmmaCommit();
}

template <int N, int kTileHeads>
__device__ __forceinline__ void LoadQueries(const DraftAttentionParams& p,
                                            const TileRows<kTileHeads>& rows, uint32_t buffer) {
  const int thread = threadIdx.x % kGroupThreads;
  const int piece = thread % 64;
#pragma unroll
  for (int n0 = 0; n0 < N; n0 += 4) {
    const int n = n0 + thread / 64;
    CopyAsync16(buffer + (piece / 8) * N * kSlabRowBytes + SlabOffset(n, piece % 8),
                p.q + rows.At(n) + piece * 8);
  }
}

__device__ __forceinline__ void GroupBarrier(int group) {
  asm volatile("bar.sync %0, 256;\n" ::"r"(group + 1) : "memory");
}

// Maximum of each column over this warp's sixteen keys, in units of the raw score.
template <int N>
__device__ __forceinline__ void StoreColumnMax(const float (&s)[N / 2], float* column_max) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
    float m0 = fmaxf(s[i], s[i + 2]);
    float m1 = fmaxf(s[i + 1], s[i + 3]);
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      m0 = fmaxf(m0, __shfl_xor_sync(0xffffffffU, m0, step));
      m1 = fmaxf(m1, __shfl_xor_sync(0xffffffffU, m1, step));
    }
    if (lane < 4) *reinterpret_cast<float2*>(column_max + i * 2 + lane * 2) = make_float2(m0, m1);
  }
}

// Softmax weights of this warp's sixteen keys: P^T to slab rows of `weights`, column sums to `sums`.
template <int N>
__device__ __forceinline__ void StoreWeights(const float (&s)[N / 2], float scale,
                                             const float* column_max, float* sums, uint32_t weights,
                                             int column) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
    const int n0 = i * 2 + lane % 4 * 2;
    const float2 m = *reinterpret_cast<const float2*>(column_max + n0);
    // The sum runs over the rounded weights: a constant value then comes out as itself.
    const uint32_t near =
        PackBf16(Exp2(fmaf(s[i], scale, -m.x)), Exp2(fmaf(s[i + 1], scale, -m.y)));
    const uint32_t far =
        PackBf16(Exp2(fmaf(s[i + 2], scale, -m.x)), Exp2(fmaf(s[i + 3], scale, -m.y)));
    const float2 near_f = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&near));
    const float2 far_f = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&far));
    float l0 = near_f.x + far_f.x;
    float l1 = near_f.y + far_f.y;
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      l0 += __shfl_xor_sync(0xffffffffU, l0, step);
      l1 += __shfl_xor_sync(0xffffffffU, l1, step);
    }
    if (lane < 4) *reinterpret_cast<float2*>(sums + n0) = make_float2(l0, l1);
    // Eight queries by sixteen keys: two 8x8 tiles side by side in the slab row of each query.
    const int n = i * 2 + lane % 8;
    const uint32_t at = weights + SlabOffset(n, column / 8 + lane / 8 % 2);
    StoreTransposed2(at, near, far);
  }
}

template <int N>
__device__ __forceinline__ void Mask(float (&s)[N / 2], bool live0, bool live1) {
  if (__all_sync(0xffffffffU, live0 && live1)) return;
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
    s[i] = live0 ? s[i] : -INFINITY;
    s[i + 1] = live0 ? s[i + 1] : -INFINITY;
    s[i + 2] = live1 ? s[i + 2] : -INFINITY;
    s[i + 3] = live1 ? s[i + 3] : -INFINITY;
  }
}

// Steps 2 to 5 for one tile. `buffer` holds its queries; `warp` is 0..7 within the group, uniform.
template <int N, int kTileHeads>
__device__ __forceinline__ void ServeTile(const DraftAttentionParams& p,
                                          const TileRows<kTileHeads>& rows, int valid, int group,
                                          int warp, uint32_t keys, uint32_t buffer,
                                          const uint8_t* buffer_pointer, float* reduce) {
  float* column_max = reduce + kReduceRows * N;
  float* column_inverse = column_max + N;
  const int lane = threadIdx.x % 32;
  const int thread = threadIdx.x % kGroupThreads;
  const int half = warp / 4;
  const float scale = p.scale * kLog2e;
  const uint64_t queries = SlabDescriptor(buffer);

  // 2. scores
  float s[N / 2];
  float last[N / 2];
  EnqueueScores<N>(s, SlabDescriptor(keys + half * 64 * kSlabRowBytes), queries);
  if (half == 0) {
    EnqueueScores<N>(last, SlabDescriptor(keys + (kDraftKeys - 64) * kSlabRowBytes), queries);
    WgmmaWait<0>();
    if (warp == 3) {  // of the last block only these sixteen rows, 120..135, hold keys past 127
      Mask<N>(last, false, 128 + lane / 4 < valid);
      StoreColumnMax<N>(last, reduce + 8 * N);
    }
  } else {
    WgmmaWait<0>();
  }
  const int key0 = warp * 16 + lane / 4;
  Mask<N>(s, key0 < valid, key0 + 8 < valid);
  StoreColumnMax<N>(s, reduce + warp * N);

  // 3. softmax
  const float sink = thread < N ? p.sink[rows.first_head + thread % kTileHeads] * kLog2e : 0.0F;
  GroupBarrier(group);
  if (thread < N) {
    float m = reduce[thread];
#pragma unroll
    for (int i = 1; i < kReduceRows; ++i) m = fmaxf(m, reduce[i * N + thread]);
    m = fmaxf(m * scale, sink);
    column_max[thread] = m == -INFINITY ? 0.0F : m;
  }
  GroupBarrier(group);
  StoreWeights<N>(s, scale, column_max, reduce + warp * N, buffer + half * N * kSlabRowBytes,
                  warp % 4 * 16);
  if (warp == 3) {
    // Columns 0..7 of the third slab stand for keys 120..127, masked here: their weight in it is 0.
    StoreWeights<N>(last, scale, column_max, reduce + 8 * N, buffer + 2 * N * kSlabRowBytes, 0);
  }
  FenceSharedForWgmma();
  GroupBarrier(group);

  // 4. four 64-wide column blocks of the output
  float o[4][N / 2];
  const uint64_t values = SlabDescriptor(keys + half * 4 * Fp8Gather::kSlabBytes);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < 9; ++k) {
    const int first_row = k < 8 ? k * 16 : kDraftKeys - 16;
    const uint64_t weights = queries + ((k / 4) * N * kSlabRowBytes + (k % 4) * 32) / 16;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      Wgmma<N, true>::Run(o[b],
                          values + (b * Fp8Gather::kSlabBytes + first_row * kSlabRowBytes) / 16,
                          weights, k > 0);
    }
  }
  WgmmaCommit();
  if (thread < N) {
    float l = 0.0F;
#pragma unroll
    for (int i = 0; i < kReduceRows; ++i) l += reduce[i * N + thread];
    l += Exp2(sink - column_max[thread]);
    column_inverse[thread] = l > 0.0F ? 1.0F / l : 0.0F;
  }
  WgmmaWait<0>();
  GroupBarrier(group);  // both warpgroups are done with P^T; column_inverse is written

  // 5. normalise and transpose into rows of the buffer, 16-byte pieces permuted by the row as in a slab
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
    const float2 inverse = *reinterpret_cast<const float2*>(column_inverse + i * 2 + lane % 4 * 2);
    const int n = i * 2 + lane % 8;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int piece = (half * 4 + b) * 8 + warp % 4 * 2 + lane / 8 % 2;
      StoreTransposed2(buffer + n * kHeadDim * 2 + ((piece ^ (n & 7)) << 4),
                       PackBf16(o[b][i] * inverse.x, o[b][i + 1] * inverse.y),
                       PackBf16(o[b][i + 2] * inverse.x, o[b][i + 3] * inverse.y));
    }
  }
  GroupBarrier(group);
  const int piece = thread % 64;
#pragma unroll
  for (int n0 = 0; n0 < N; n0 += 4) {
    const int n = n0 + thread / 64;
    *reinterpret_cast<uint4*>(p.out + rows.At(n) + piece * 8) = *reinterpret_cast<const uint4*>(
        buffer_pointer + n * kHeadDim * 2 + ((piece ^ (n & 7)) << 4));
  }
}

template <int N, int kTileHeads, KvFormat kFormat>
__global__ void __launch_bounds__(kDraftThreads, 1) DraftAttention(const DraftAttentionParams p) {
  using Shared = DraftShared<N>;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t keys = SharedAddress(shared);
  const int groups = p.tiles_per_cta > 1 ? 2 : 1;
  const int list = blockIdx.y;
  // Uniform across a warp: lets the compiler keep descriptors in uniform registers.
  const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x / 32), 0);
  const int group = warp / 8;
  const uint32_t buffer_at = Shared::kKeyBytes + group * Shared::kTileBytes;
  float* reduce =
      reinterpret_cast<float*>(shared + Shared::kKeyBytes + groups * Shared::kTileBytes) +
      group * Shared::kReduceFloats;
  const int last_tile = min((static_cast<int>(blockIdx.x) + 1) * p.tiles_per_cta, p.tiles);
  int tile = blockIdx.x * p.tiles_per_cta + group;
  WaitForEarlierKernels();
  const int planned = __ldcg(p.valid + list);
  const bool live = static_cast<int64_t>(list) * p.rows_per_list < __ldcg(p.live_rows);
  const int valid = live ? min(planned, kDraftKeys) : 0;
  const bool serves = group < groups && tile < last_tile;
  if (valid == 0) {
    for (; live && serves && tile < last_tile; tile += 2) {
      const TileRows<kTileHeads> rows(p, tile);
      for (int c = threadIdx.x % kGroupThreads; c < N * 64; c += kGroupThreads) {
        *reinterpret_cast<uint4*>(p.out + rows.At(c / 64) + c % 64 * 8) = make_uint4(0, 0, 0, 0);
      }
    }
    return;
  }

  // 1. all keys and the first queries into shared memory
  if constexpr (kFormat == KvFormat::kFp8) {
    Fp8Gather gather;
    gather.Load(p, list, valid);
    if (serves) LoadQueries<N, kTileHeads>(p, TileRows<kTileHeads>(p, tile), keys + buffer_at);
    gather.Store(keys);
  } else {
    GatherBf16(p, list, keys, valid);
    if (serves) LoadQueries<N, kTileHeads>(p, TileRows<kTileHeads>(p, tile), keys + buffer_at);
  }
  asm volatile("cp.async.wait_all;\n" ::: "memory");
  FenceSharedForWgmma();
  __syncthreads();
  AllowNextKernel();
  if (!serves) return;

  while (true) {
    const TileRows<kTileHeads> rows(p, tile);
    ServeTile<N, kTileHeads>(p, rows, valid, group, warp % 8, keys, keys + buffer_at,
                             shared + buffer_at, reduce);
    tile += 2;
    if (tile >= last_tile) return;
    GroupBarrier(group);  // the buffer has been read out
    LoadQueries<N, kTileHeads>(p, TileRows<kTileHeads>(p, tile), keys + buffer_at);
    asm volatile("cp.async.wait_all;\n" ::: "memory");
    FenceSharedForWgmma();
    GroupBarrier(group);
  }
}

}  // namespace firesteel::sm90
