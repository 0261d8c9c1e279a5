// Attention of draft blocks on Hopper: every query row of a request reads the same short key list (up to 136 keys: a
// window of 128 and the block). One CTA decodes the list once and serves one or more tiles of N query rows (block rows x
// heads), loading the next tile's queries while it works on the current one.
//
// Scores are S^T = K Q^T and the output O^T = V^T P^T, so that N query rows fill the matrix unit without padding:
//   1. 512 threads gather the listed rows, decode them to bf16 and place them in eight swizzled slabs of 64 columns;
//      rows past `valid` are zeroed. Query rows arrive by cp.async meanwhile.
//   2. warpgroups 0..2 compute the scores of key rows 0..63, 64..127 and 72..135 (the overlap is masked: it avoids
//      padding the list to 192 rows of shared memory).
//   3. softmax over keys, in one fixed order: warps of a key block, then blocks, then the sink. P^T replaces the queries.
//   4. each warpgroup multiplies two of the eight 64-wide column blocks of V^T with P^T; the output replaces P^T, rows
//      are normalised on the way and stored whole.
// A query row's arithmetic does not depend on N, the batch or the neighbours, so the host may choose N by the batch.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/sm90/kv_convert.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"
#include "kernels/ops/kv_record.h"

namespace firesteel::sm90 {

constexpr int kDraftKeys = 136;  // list capacity: a window of 128 and a block of up to 8
constexpr int kHeadDim = 512;
constexpr int kSlabs = kHeadDim / kSlabCols;
constexpr int kDraftThreads = 512;
constexpr float kLog2e = 1.4426950408889634F;

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
  int32_t tile_heads;        // N = tile_rows * tile_heads
  int32_t tile_rows;
  int32_t tiles;             // of one list
  int32_t tiles_per_cta;
  float scale;
};

template <int N>
struct DraftShared {
  static constexpr int kKeyBytes = kSlabs * kDraftKeys * kSlabRowBytes;
  // Queries of one tile, then P^T, then the output: N rows of 1,024 bytes each time.
  static constexpr int kTileBytes = N * kHeadDim * 2;
  static constexpr int kReduceBytes = 12 * N * 4 > kDraftKeys * 8 ? 12 * N * 4 : kDraftKeys * 8;
  static constexpr int Total(int buffers) {
    return kKeyBytes + buffers * kTileBytes + kReduceBytes + 2 * N * 4;
  }
};

// Offset of (row, head) of tile column n, in rows of `heads` * 512 values.
__device__ __forceinline__ int64_t QueryRow(const DraftAttentionParams& p, int tile, int n) {
  const int row_tiles = p.rows_per_list / p.tile_rows;
  const int row = tile % row_tiles * p.tile_rows + n / p.tile_heads;
  const int head = tile / row_tiles * p.tile_heads + n % p.tile_heads;
  return (static_cast<int64_t>(blockIdx.y) * p.rows_per_list + row) * p.heads + head;
}

// Programmatic dependent launch: nothing before WaitForPreviousKernel may read what an earlier kernel wrote.
__device__ __forceinline__ void WaitForPreviousKernel() {
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
}
__device__ __forceinline__ void AllowNextKernel() {
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
}

__device__ __forceinline__ void CopyAsync16(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared), "l"(global) : "memory");
}

// Four 8x8 tiles of bf16 pairs, each stored transposed: lane l's pairs of a tile are (row l / 4, columns 2 (l % 4) and + 1);
// lane 8 i + j supplies the address of the 16 bytes that hold column j of tile i.
__device__ __forceinline__ void StoreTransposed(uint32_t shared, uint32_t r0, uint32_t r1, uint32_t r2,
                                                uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(shared),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}
__device__ __forceinline__ void StoreTransposed2(uint32_t shared, uint32_t r0, uint32_t r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};\n" ::"r"(shared),
               "r"(r0), "r"(r1)
               : "memory");
}

__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&v);
}

__device__ __forceinline__ uint4 LoadStreaming(const void* global) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(global));
  return v;
}

__device__ __forceinline__ void StoreShared16(uint32_t shared, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(shared), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

// One CTA's share of the fp8 rows, 16 bytes at a time. A row is 36 pieces: 28 of sixteen codes, 8 of eight bf16; four
// pieces form a group (one slab, or half of the last one). Groups are visited in order, so that scores over the first
// slabs can start while later ones are being decoded. Eight neighbouring threads take four pieces of two neighbouring
// rows: with the swizzle their stores then hit all banks once.
struct Fp8Gather {
  static constexpr int kGroups = 9;
  static constexpr int kUnits = kDraftKeys * 4 * kGroups;
  static constexpr int kPerThread = (kUnits + kDraftThreads - 1) / kDraftThreads;

  uint4 raw[kPerThread];
  uint32_t scale[kPerThread];

  static __device__ __forceinline__ void Locate(int i, int* group, int* key, int* piece) {
    const int unit = threadIdx.x + i * kDraftThreads;
    *group = unit / (kDraftKeys * 4);
    const int rest = unit - *group * (kDraftKeys * 4);
    *key = rest / 8 * 2 + rest % 8 / 4;
    *piece = rest % 4;
  }

  __device__ __forceinline__ void Load(const DraftAttentionParams& p, const uint2* row_at, int valid) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      int group, key, piece;
      Locate(i, &group, &key, &piece);
      raw[i] = make_uint4(0, 0, 0, 0);
      scale[i] = 127;
      if (key < valid && group < kGroups) {
        const uint2 at = row_at[key];
        raw[i] = LoadStreaming(p.pages + static_cast<int64_t>(at.x) * 16 + group * 64 + piece * 16);
        if (group < 7) {
          scale[i] = *reinterpret_cast<const uint8_t*>(p.pages + static_cast<int64_t>(at.y) * 8 + group);
        }
      }
    }
  }

  // Decodes and stores pieces [first, last).
  template <int kFirst, int kLast>
  __device__ __forceinline__ void Store(uint32_t keys) const {
#pragma unroll
    for (int i = kFirst; i < kLast; ++i) {
      int group, key, piece;
      Locate(i, &group, &key, &piece);
      if (group < 7) {
        uint4 low, high;
        DecodeE4M3x16(raw[i], scale[i], &low, &high);
        const uint32_t slab = keys + group * kDraftKeys * kSlabRowBytes;
        StoreShared16(slab + SlabOffset(key, piece * 2), low);
        StoreShared16(slab + SlabOffset(key, piece * 2 + 1), high);
      } else if (group < kGroups) {
        const uint32_t slab = keys + (kSlabs - 1) * kDraftKeys * kSlabRowBytes;
        StoreShared16(slab + SlabOffset(key, (group - 7) * 4 + piece), raw[i]);
      }
    }
  }
};

__device__ __forceinline__ void GatherBf16(const DraftAttentionParams& p, const uint2* row_at,
                                           uint32_t keys, int valid) {
  constexpr int kPieces = 64;
  for (int c = threadIdx.x; c < kDraftKeys * kPieces; c += kDraftThreads) {
    const int key = c / kPieces;
    const int piece = c % kPieces;
    const uint32_t target =
        keys + (piece / 8) * kDraftKeys * kSlabRowBytes + SlabOffset(key, piece % 8);
    if (key < valid) {
      CopyAsync16(target, p.pages + static_cast<int64_t>(row_at[key].x) * 16 + piece * 16);
    } else {
      StoreShared16(target, make_uint4(0, 0, 0, 0));
    }
  }
}

// Scores of one warpgroup's 64 key rows over slabs [kFirst, kLast); asynchronous.
template <int N, int kFirst, int kLast>
__device__ __forceinline__ void EnqueueScores(float (&s)[N / 2], uint32_t keys, uint32_t queries,
                                              int first_key) {
  WgmmaFence();
#pragma unroll
  for (int slab = kFirst; slab < kLast; ++slab) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint64_t a = SlabDescriptor(keys + slab * kDraftKeys * kSlabRowBytes +
                                        first_key * kSlabRowBytes + k * 32);
      const uint64_t b = SlabDescriptor(queries + slab * N * kSlabRowBytes + k * 32);
      Wgmma<N, false>::Run(s, a, b, 1);
    }
  }
  WgmmaCommit();
}

template <int N>
__device__ __forceinline__ void LoadQueries(const DraftAttentionParams& p, int tile, uint32_t buffer) {
  for (int c = threadIdx.x; c < N * 64; c += kDraftThreads) {
    const int n = c / 64;
    const int piece = c % 64;
    CopyAsync16(buffer + (piece / 8) * N * kSlabRowBytes + SlabOffset(n, piece % 8),
                p.q + QueryRow(p, tile, n) * kHeadDim + piece * 8);
  }
}

// Softmax weights of this warp's sixteen keys: P^T to slab rows of `weights`, column sums to `sums`.
template <int N>
__device__ __forceinline__ void StoreWeights(const float (&s)[N / 2], const float* column_max,
                                             float* sums, uint32_t weights, int column, bool store) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
    const int n0 = i * 2 + lane % 4 * 2;
    const float m0 = column_max[n0];
    const float m1 = column_max[n0 + 1];
    // The sum runs over the rounded weights: a constant value then comes out as itself.
    const uint32_t near = PackBf16(exp2f(s[i] - m0), exp2f(s[i + 1] - m1));
    const uint32_t far = PackBf16(exp2f(s[i + 2] - m0), exp2f(s[i + 3] - m1));
    const float2 near_f = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&near));
    const float2 far_f = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&far));
    float l0 = near_f.x + far_f.x;
    float l1 = near_f.y + far_f.y;
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      l0 += __shfl_xor_sync(0xffffffffU, l0, step);
      l1 += __shfl_xor_sync(0xffffffffU, l1, step);
    }
    if (lane < 4) {
      sums[n0] = l0;
      sums[n0 + 1] = l1;
    }
    // Eight queries by sixteen keys: two 8x8 tiles side by side in the slab row of each query.
    const int n = i * 2 + lane % 8;
    const uint32_t at = weights + SlabOffset(n, column / 8 + lane / 8 % 2);
    if (store) StoreTransposed2(at, near, far);
  }
}

template <int N, KvFormat kFormat>
__global__ void __launch_bounds__(kDraftThreads, 1) DraftAttention(const DraftAttentionParams p) {
  using Shared = DraftShared<N>;
  extern __shared__ __align__(1024) uint8_t shared[];
  const bool two_buffers = p.tiles_per_cta > 1;
  const uint32_t keys = SharedAddress(shared);
  const uint32_t buffers = keys + Shared::kKeyBytes;
  uint8_t* const buffers_pointer = shared + Shared::kKeyBytes;
  float* reduce =
      reinterpret_cast<float*>(buffers_pointer + (two_buffers ? 2 : 1) * Shared::kTileBytes);
  float* column_max = reduce + Shared::kReduceBytes / 4;
  float* column_inverse = column_max + N;
  // Where each listed row is: x its data in 16-byte units, y its scales in 8-byte units. The reduction's memory is free
  // until the scores are there.
  uint2* row_at = reinterpret_cast<uint2*>(reduce);

  const int list = blockIdx.y;
  const int first_tile = blockIdx.x * p.tiles_per_cta;
  const int last_tile = min(first_tile + p.tiles_per_cta, p.tiles);
  const int warpgroup = threadIdx.x / 128;
  const int warp = threadIdx.x / 32 % 4;
  const int lane = threadIdx.x % 32;
  WaitForPreviousKernel();
  const int planned = p.valid[list];
  const bool live = static_cast<int64_t>(list) * p.rows_per_list < *p.live_rows;
  const int valid = live ? planned : 0;
  if (valid == 0) {
    for (int tile = first_tile; live && tile < last_tile; ++tile) {
      for (int c = threadIdx.x; c < N * 64; c += kDraftThreads) {
        *reinterpret_cast<uint4*>(p.out + QueryRow(p, tile, c / 64) * kHeadDim + c % 64 * 8) =
            make_uint4(0, 0, 0, 0);
      }
    }
    return;
  }

  // 1. the first queries and all keys into shared memory
  if (threadIdx.x < valid) {
    const int32_t row = p.index[static_cast<int64_t>(list) * p.width + threadIdx.x];
    const int64_t page = row / p.block_entries * p.page_bytes;
    const int entry = row % p.block_entries;
    constexpr int kRowBytes = kFormat == KvFormat::kFp8 ? 576 : 1024;
    row_at[threadIdx.x] =
        make_uint2(static_cast<uint32_t>((page + entry * kRowBytes) / 16),
                   static_cast<uint32_t>((page + p.block_entries * kRowBytes) / 8 + entry));
  }
  LoadQueries<N>(p, first_tile, buffers);
  __syncthreads();
  if constexpr (kFormat == KvFormat::kFp8) {
    Fp8Gather gather;
    gather.Load(p, row_at, valid);
    gather.Store<0, Fp8Gather::kPerThread>(keys);
  } else {
    GatherBf16(p, row_at, keys, valid);
  }
  asm volatile("cp.async.wait_all;\n" ::: "memory");
  FenceSharedForWgmma();
  __syncthreads();

  const int first_key = warpgroup == 2 ? kDraftKeys - 64 : warpgroup * 64;
  const bool tail = warpgroup == 2;
  const int key0 = first_key + warp * 16 + lane / 4;
  const bool live0 = key0 < valid && !(tail && key0 < 128);
  const bool live1 = key0 + 8 < valid && !(tail && key0 + 8 < 128);
  const float scale = p.scale * kLog2e;
  for (int tile = first_tile; tile < last_tile; ++tile) {
    const uint32_t buffer = buffers + (tile - first_tile) % 2 * Shared::kTileBytes;
    if (tile + 1 < last_tile) {
      LoadQueries<N>(p, tile + 1, buffers + (tile + 1 - first_tile) % 2 * Shared::kTileBytes);
    }
    // 2. scores of this warpgroup's 64 key rows
    float s[N / 2];
    if (warpgroup < 3) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) s[i] = 0.0F;
      EnqueueScores<N, 0, kSlabs>(s, keys, buffer, first_key);
      WgmmaWait<0>();

      // 3a. mask, and the maximum of each column over this warp's sixteen keys
#pragma unroll
      for (int i = 0; i < N / 2; i += 4) {
        float* t = s + i;
        t[0] = live0 ? t[0] * scale : -INFINITY;
        t[1] = live0 ? t[1] * scale : -INFINITY;
        t[2] = live1 ? t[2] * scale : -INFINITY;
        t[3] = live1 ? t[3] * scale : -INFINITY;
        float m0 = fmaxf(t[0], t[2]);
        float m1 = fmaxf(t[1], t[3]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
          m0 = fmaxf(m0, __shfl_xor_sync(0xffffffffU, m0, step));
          m1 = fmaxf(m1, __shfl_xor_sync(0xffffffffU, m1, step));
        }
        if (lane < 4) {
          float* column = reduce + (warpgroup * 4 + warp) * N + i * 2 + lane * 2;
          column[0] = m0;
          column[1] = m1;
        }
      }
    }
    const float sink =
        threadIdx.x < N ? p.sink[QueryRow(p, tile, threadIdx.x) % p.heads] * kLog2e : 0.0F;
    __syncthreads();
    if (threadIdx.x < N) {
      float m = sink;
#pragma unroll
      for (int i = 0; i < 12; ++i) m = fmaxf(m, reduce[i * N + threadIdx.x]);
      column_max[threadIdx.x] = m == -INFINITY ? 0.0F : m;
    }
    __syncthreads();

    // 3b. P^T over the queries. Of the third block only the last warp holds keys past 127: they go to columns 8..15 of
    // the third slab; columns 0..7 belong to keys 120..127, which that block masks, so their weight there is 0.
    if (warpgroup < 3) {
      StoreWeights<N>(s, column_max, reduce + (warpgroup * 4 + warp) * N,
                      buffer + warpgroup * N * kSlabRowBytes, tail ? 0 : warp * 16,
                      !tail || warp == 3);
    }
    FenceSharedForWgmma();
    __syncthreads();

    // 4. two 64-wide column blocks of the output
    float o[2][N / 2];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) o[b][i] = 0.0F;
    }
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 9; ++k) {
      const int first_row = k < 8 ? k * 16 : kDraftKeys - 16;
      const uint64_t weights =
          SlabDescriptor(buffer + (k / 4) * N * kSlabRowBytes + (k % 4) * 32);
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const uint64_t value = SlabDescriptor(
            keys + (warpgroup * 2 + b) * kDraftKeys * kSlabRowBytes + first_row * kSlabRowBytes);
        Wgmma<N, true>::Run(o[b], value, weights, 1);
      }
    }
    WgmmaCommit();
    if (threadIdx.x < N) {
      float l = 0.0F;
#pragma unroll
      for (int i = 0; i < 12; ++i) l += reduce[i * N + threadIdx.x];
      l += exp2f(sink - column_max[threadIdx.x]);
      column_inverse[threadIdx.x] = l > 0.0F ? 1.0F / l : 0.0F;
    }
    WgmmaWait<0>();
    __syncthreads();  // every warpgroup is done with P^T; column_inverse is written
    if (tile + 1 == last_tile) AllowNextKernel();

    // 5. normalise and transpose into rows of the buffer, 16-byte pieces permuted by the row as in a slab
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int piece = (warpgroup * 2 + b) * 8 + warp * 2 + lane / 8 % 2;
#pragma unroll
      for (int i = 0; i < N / 2; i += 4) {
        const int n0 = i * 2 + lane % 4 * 2;
        const float inverse0 = column_inverse[n0];
        const float inverse1 = column_inverse[n0 + 1];
        const int n = i * 2 + lane % 8;
        StoreTransposed2(buffer + n * kHeadDim * 2 + ((piece ^ (n & 7)) << 4),
                         PackBf16(o[b][i] * inverse0, o[b][i + 1] * inverse1),
                         PackBf16(o[b][i + 2] * inverse0, o[b][i + 3] * inverse1));
      }
    }
    __syncthreads();
    const uint8_t* rows = buffers_pointer + (tile - first_tile) % 2 * Shared::kTileBytes;
    for (int c = threadIdx.x; c < N * 64; c += kDraftThreads) {
      const int n = c / 64;
      const int piece = c % 64;
      *reinterpret_cast<uint4*>(p.out + QueryRow(p, tile, n) * kHeadDim + piece * 8) =
          *reinterpret_cast<const uint4*>(rows + n * kHeadDim * 2 + ((piece ^ (n & 7)) << 4));
    }
    if (tile + 1 == last_tile) break;
    asm volatile("cp.async.wait_all;\n" ::: "memory");
    FenceSharedForWgmma();
    __syncthreads();  // the next queries are there, and this buffer may be filled again
  }
}

}  // namespace firesteel::sm90
