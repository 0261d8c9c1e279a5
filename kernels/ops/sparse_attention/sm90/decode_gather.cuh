// Gathers tiles of 64 listed cache rows into swizzled bf16 slabs, by the 256 producer threads of the decode kernel.
//
// The tiles of a row are those of its window list, then those of its extra list; both lists start a tile of their own. Tiles
// are dealt out to the blocks of a cluster in turn.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/sm90/cluster.cuh"
#include "kernels/cuda/sm90/kv_convert.cuh"
#include "kernels/cuda/sm90/shared_access.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"
#include "kernels/ops/kv_record.h"
#include "kernels/ops/sparse_attention/sparse_attention.h"

namespace firesteel::sm90 {

inline constexpr int kDecodeHeadDim = 512;
inline constexpr int kDecodeSlabs = kDecodeHeadDim / kSlabCols;
inline constexpr int kTileKeys = 64;
inline constexpr int kTileSlabBytes = kTileKeys * kSlabRowBytes;
inline constexpr int kTileBytes = kDecodeSlabs * kTileSlabBytes;
inline constexpr int kClusterBlocks = 2;
inline constexpr int kProducerThreads = 256;
inline constexpr int kThreadsPerKey = kProducerThreads / kTileKeys;

// The lists of one query row. They are read past the L1 cache: see cuda/early_launch.cuh.
struct RowLists {
  const int32_t* window;
  const int32_t* extra;
  int32_t window_valid;
  int32_t extra_valid;
  int32_t window_tiles;
  int32_t tiles;

  __device__ __forceinline__ RowLists(const SparseAttentionArgs& a, int64_t row)
      : window(a.window_rows.index + row * a.window_rows.width),
        extra(a.extra_rows.valid == nullptr ? nullptr
                                            : a.extra_rows.index + row * a.extra_rows.width),
        window_valid(__ldcg(a.window_rows.valid + row)),
        extra_valid(a.extra_rows.valid == nullptr ? 0 : __ldcg(a.extra_rows.valid + row)),
        window_tiles((window_valid + kTileKeys - 1) / kTileKeys),
        tiles(window_tiles + (extra_valid + kTileKeys - 1) / kTileKeys) {}

  __device__ __forceinline__ bool InWindow(int tile) const { return tile < window_tiles; }
  // Keys of a tile, 1..64.
  __device__ __forceinline__ int Count(int tile) const {
    const int left = InWindow(tile) ? window_valid - tile * kTileKeys
                                    : extra_valid - (tile - window_tiles) * kTileKeys;
    return min(left, kTileKeys);
  }
  // The cache row of key `key` of a tile; key < Count(tile).
  __device__ __forceinline__ int32_t Key(int tile, int key) const {
    return __ldcg(InWindow(tile) ? window + tile * kTileKeys + key
                                 : extra + (tile - window_tiles) * kTileKeys + key);
  }
};

// Where a cache row is stored. Row numbers and entries of a page are 32-bit.
template <int kRowBytes>
struct CacheRow {
  const std::byte* data;
  const std::byte* scale;  // eight scale bytes of an fp8 row

  __device__ __forceinline__ CacheRow(const KvPages& pages, int32_t row) {
    const int32_t page = row / pages.block_entries;
    const int32_t entry = row - page * pages.block_entries;
    const std::byte* base = pages.data + page * pages.page_bytes;
    data = base + entry * kRowBytes;
    scale = base + pages.block_entries * kRowBytes + entry * 8;
  }
};

// Whether tiles of this format have the columns of a slab in the order of SwapMiddles.
template <KvFormat kFormat>
__device__ __forceinline__ bool IsSwappedSlab(int slab) {
  return kFormat == KvFormat::kFp8 && slab < kDecodeSlabs - 1;
}

// Asks for the line at `global` to be in the second-level cache soon.
__device__ __forceinline__ void PrefetchLine(const void* global) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(global) : "memory");
}

// fp8 rows travel through registers: a row is 36 pieces of 16 bytes, 28 of sixteen codes and 8 of eight bf16. A thread
// takes every fourth piece of one row; eight neighbouring threads cover two rows, so that with the swizzle their stores hit all
// banks once. The columns that were codes are in the order of SwapMiddles.
struct Fp8Tile {
  static constexpr int kRowBytes = 576;
  static constexpr int kPieces = 9;

  uint4 raw[kPieces];
  uint2 scales;

  static __device__ __forceinline__ int Key() {
    return static_cast<int>(threadIdx.x) % kProducerThreads / kThreadsPerKey;
  }
  static __device__ __forceinline__ int Piece() {
    return static_cast<int>(threadIdx.x) % kThreadsPerKey;
  }

  // The cache row that this thread loads of a tile, or -1.
  static __device__ __forceinline__ int32_t Row(const RowLists& lists, int tile) {
    return tile < lists.tiles && Key() < lists.Count(tile) ? lists.Key(tile, Key()) : -1;
  }
  static __device__ __forceinline__ const KvPages& Pages(const SparseAttentionArgs& a,
                                                         const RowLists& lists, int tile) {
    return lists.InWindow(tile) ? a.window : a.extra;
  }

  // The four threads of a row ask for all its lines, and for its scales, which lie apart.
  static __device__ __forceinline__ void Prefetch(const KvPages& pages, int32_t row) {
    constexpr int kStep = 80;  // eight of them cover a row and skip no line
    if (row < 0) return;
    const CacheRow<kRowBytes> at(pages, row);
    const std::byte* data = at.data + Piece() * 2 * kStep;
    PrefetchLine(data);
    PrefetchLine(data + kStep);
    if (Piece() == 0) PrefetchLine(at.scale);
  }

  // The row whose pieces are loaded next.
  struct Source {
    const std::byte* data;  // null past the list
    const std::byte* scale;
    __device__ __forceinline__ Source(const KvPages& pages, int32_t row) {
      const CacheRow<kRowBytes> at(pages, max(row, 0));
      data = row < 0 ? nullptr : at.data + Piece() * 16;
      scale = at.scale;
    }
  };

  // Rows past the list are zeros: their weight is zero, and zero times what was left there need not be.
  __device__ __forceinline__ void LoadPiece(const Source& source, int i) {
    raw[i] = make_uint4(0, 0, 0, 0);
    if (source.data != nullptr) raw[i] = LoadStreaming(source.data + i * kThreadsPerKey * 16);
  }
  __device__ __forceinline__ void LoadScales(const Source& source) {
    scales = make_uint2(0, 0);
    if (source.data != nullptr) scales = __ldcg(reinterpret_cast<const uint2*>(source.scale));
  }
  __device__ __forceinline__ void Load(const Source& source) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) LoadPiece(source, i);
    LoadScales(source);
  }

  __device__ __forceinline__ void StorePiece(uint32_t keys, int i, const uint2& row_scales) const {
    if (i < kPieces - 2) {
      const uint32_t scale = __byte_perm(row_scales.x, row_scales.y, 0x4440 + i) & 0xffU;
      uint4 low, high;
      DecodeE4M3x16Swapped(raw[i], scale, &low, &high);
      const uint32_t slab = keys + i * kTileSlabBytes;
      StoreShared16(slab + SlabOffset(Key(), Piece() * 2), low);
      StoreShared16(slab + SlabOffset(Key(), Piece() * 2 + 1), high);
    } else {
      const int piece = (i - (kPieces - 2)) * kThreadsPerKey + Piece();
      StoreShared16(keys + (kDecodeSlabs - 1) * kTileSlabBytes + SlabOffset(Key(), piece), raw[i]);
    }
  }
  __device__ __forceinline__ void Store(uint32_t keys) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) StorePiece(keys, i, scales);
  }
  // The same, and each piece is loaded anew from `next` as soon as it is stored.
  __device__ __forceinline__ void StoreAndLoad(uint32_t keys, const Source& next) {
    const uint2 row_scales = scales;
    LoadScales(next);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      StorePiece(keys, i, row_scales);
      LoadPiece(next, i);
    }
  }
};

// bf16 rows are copied as they are, each by a warp. Asynchronous.
struct Bf16Tile {
  static constexpr int kRowBytes = 2 * kDecodeHeadDim;

  static __device__ __forceinline__ void Copy(const SparseAttentionArgs& a, const RowLists& lists,
                                              int tile, uint32_t keys) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) % kProducerThreads / 32;
    const int count = lists.Count(tile);
    const KvPages& pages = lists.InWindow(tile) ? a.window : a.extra;
#pragma unroll 4
    for (int key = warp; key < kTileKeys; key += kProducerThreads / 32) {
      const uint32_t low = keys + (lane / 8) * kTileSlabBytes + SlabOffset(key, lane % 8);
      const uint32_t high = low + kDecodeSlabs / 2 * kTileSlabBytes;
      if (key < count) {
        const CacheRow<kRowBytes> row(pages, lists.Key(tile, key));
        CopyAsync16(low, row.data + lane * 16);
        CopyAsync16(high, row.data + kRowBytes / 2 + lane * 16);
      } else {
        StoreShared16(low, make_uint4(0, 0, 0, 0));
        StoreShared16(high, make_uint4(0, 0, 0, 0));
      }
    }
  }
};

// Tiles of keys on their way from the producers to the consumers.
template <int kStages>
struct TileStages {
  uint32_t keys;   // shared address of stage 0
  uint32_t full;   // shared address of kStages barriers: one arrival a producer warp
  uint32_t empty;  // the same: one arrival a consumer warp

  // By one thread, before anything else; a fence must follow.
  __device__ __forceinline__ void InitBarriers(uint32_t consumer_warps) const {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(full + i * 8, kProducerThreads / 32);
      InitBarrier(empty + i * 8, consumer_warps);
    }
  }
  __device__ __forceinline__ uint32_t Keys(int use) const {
    return keys + use % kStages * kTileBytes;
  }
  // Afterwards the matrix unit may read the stage.
  __device__ __forceinline__ void WaitFull(int use) const {
    WaitBarrier(full + use % kStages * 8, use / kStages % 2);
    // Here and not with the producers: there it would wait for their loads of the next tile.
    FenceSharedForWgmma();
  }
  // Before use `use` of its stage writes: the last use has been read.
  __device__ __forceinline__ void WaitEmpty(int use) const {
    if (use >= kStages) WaitBarrier(empty + use % kStages * 8, (use / kStages - 1) % 2);
  }
  static __device__ __forceinline__ void ArriveWarp(uint32_t barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ArriveBarrier(barrier);
  }
  __device__ __forceinline__ void Fill(int use) const { ArriveWarp(full + use % kStages * 8); }
  __device__ __forceinline__ void Release(int use) const { ArriveWarp(empty + use % kStages * 8); }
};

// While the consumers finish, brings to the second-level cache what the block that will take this one's place reads first.
// Grid: (blocks of all heads of a row, rows), one block on a multiprocessor.
__device__ __forceinline__ void PrefetchNextWave(const SparseAttentionArgs& a, int first_tile) {
  uint32_t multiprocessors;
  asm("mov.u32 %0, %%nsmid;\n" : "=r"(multiprocessors));
  const int64_t row = blockIdx.y + (blockIdx.x + multiprocessors) / gridDim.x;
  if (row >= __ldcg(a.live)) return;
  const RowLists lists(a, row);
#pragma unroll
  for (int t = first_tile; t <= first_tile + kClusterBlocks; t += kClusterBlocks) {
    Fp8Tile::Prefetch(Fp8Tile::Pages(a, lists, t), Fp8Tile::Row(lists, t));
  }
}

// Fills stage after stage with the tiles first_tile, first_tile + kClusterBlocks, ... of a row.
template <int kStages, int kRegisters>
__device__ __forceinline__ void ProduceFp8Tiles(const SparseAttentionArgs& a, const RowLists& lists,
                                                int first_tile, const TileStages<kStages>& stages) {
  // Ahead of a tile's decoding: its bytes in registers; one tile further, in the second-level cache; two, its row number.
  Fp8Tile tile;
  const auto source = [&](int t, int32_t row) {
    return Fp8Tile::Source(Fp8Tile::Pages(a, lists, t), row);
  };
  tile.Load(source(first_tile, Fp8Tile::Row(lists, first_tile)));
  int next = first_tile + kClusterBlocks;
  int32_t next_row = Fp8Tile::Row(lists, next);
  int32_t later_row = Fp8Tile::Row(lists, next + kClusterBlocks);
  Fp8Tile::Prefetch(Fp8Tile::Pages(a, lists, next), next_row);
  WaitCluster();
  ShrinkRegisters<kRegisters>();
  for (int use = 0; next - kClusterBlocks < lists.tiles; next += kClusterBlocks, ++use) {
    stages.WaitEmpty(use);
    if constexpr (kStages > 2) {
      tile.StoreAndLoad(stages.Keys(use), source(next, next_row));
      stages.Fill(use);
    } else {
      // With two stages the consumers wait for this one: loads would only delay it.
      tile.Store(stages.Keys(use));
      stages.Fill(use);
      tile.Load(source(next, next_row));
    }
    Fp8Tile::Prefetch(Fp8Tile::Pages(a, lists, next + kClusterBlocks), later_row);
    next_row = later_row;
    later_row = Fp8Tile::Row(lists, next + 2 * kClusterBlocks);
  }
  PrefetchNextWave(a, first_tile);
}

template <int kStages, int kRegisters>
__device__ __forceinline__ void ProduceBf16Tiles(const SparseAttentionArgs& a,
                                                 const RowLists& lists, int first_tile,
                                                 const TileStages<kStages>& stages) {
  WaitCluster();
  ShrinkRegisters<kRegisters>();
  int use = 0;
  for (int t = first_tile; t < lists.tiles; t += kClusterBlocks, ++use) {
    stages.WaitEmpty(use);
    Bf16Tile::Copy(a, lists, t, stages.Keys(use));
    asm volatile("cp.async.commit_group;\n" ::: "memory");
    if (use > 0) {
      asm volatile("cp.async.wait_group 1;\n" ::: "memory");
      stages.Fill(use - 1);
    }
  }
  asm volatile("cp.async.wait_group 0;\n" ::: "memory");
  if (use > 0) stages.Fill(use - 1);
}

template <KvFormat kFormat, int kStages, int kRegisters>
__device__ __forceinline__ void ProduceTiles(const SparseAttentionArgs& a, const RowLists& lists,
                                             int first_tile, const TileStages<kStages>& stages) {
  if constexpr (kFormat == KvFormat::kFp8) {
    ProduceFp8Tiles<kStages, kRegisters>(a, lists, first_tile, stages);
  } else {
    ProduceBf16Tiles<kStages, kRegisters>(a, lists, first_tile, stages);
  }
}

}  // namespace firesteel::sm90
