// Scores of fp8 index keys of the published width, on tensor cores.
//
// A warp holds 32 keys as the left operand: e4m3 codes decoded exactly to bf16, with the key's scale applied to the finished
// score. Query heads are the right operand, from shared memory; fp32 queries are three bf16 parts, so that no bit is lost
// before the accumulator. One decode serves every row of a block that has the keys' slot. A score is summed in one order,
// whatever rows and keys share its block: over the width by the instruction, over a lane's heads in ascending order, over
// the four lanes of a key in one tree.
#pragma once

#include <cuda_runtime.h>

#include "kernels/core/float_codec.h"
#include "kernels/core/math.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/row_quad.cuh"
#include "kernels/ops/indexer/entry_row.cuh"
#include "kernels/ops/indexer/indexer.h"

namespace firesteel::score_tiles {

inline constexpr int32_t kWidth = 128;
inline constexpr int32_t kSteps = kWidth / 16;   // of one product over the width
inline constexpr int32_t kPieces = kWidth / 32;  // 16-byte pieces that a lane holds of a query head
inline constexpr int32_t kTileHeads = 8;
inline constexpr int32_t kMaxHeads = 64;
inline constexpr int32_t kWarps = 8;
inline constexpr int32_t kThreads = kWarps * 32;
inline constexpr int32_t kWarpKeys = 32;
inline constexpr int32_t kBlockKeys = kWarps * kWarpKeys;

// Parts of a query value, and rows whose queries fit a block so that two blocks fit a multiprocessor.
template <DType kStorage>
inline constexpr int32_t kParts = kStorage == DType::kBf16 ? 1 : 3;
template <DType kStorage>
inline constexpr int32_t kGroupRows = kStorage == DType::kBf16 ? 6 : 2;

// Shared memory of a group of rows: query pieces, then head weights.
template <DType kStorage>
constexpr int32_t SharedBytes(int32_t rows, int32_t heads) {
  return rows * heads * (kParts<kStorage> * kWidth * 2 + 4);
}

// As Max(x, 0): NaN stays.
__device__ inline float Relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// Two e4m3 codes in the high bytes of two 16-bit lanes as bf16. Sign and magnitude land 2^120 too low; the product is exact.
__device__ inline uint32_t DecodePair(uint32_t high_bytes) {
  const uint32_t bits = ((high_bytes >> 4) & 0x07f007f0U) | (high_bytes & 0x80008000U);
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(bits), "r"(0x7b807b80U));
  return out;
}

// Keys first .. first + 31 of a slot as the left operand: key lane / 4 + 8 i is number i of this lane's four, and the lane has
// columns 32 (lane % 4) and up of each. The product is indifferent to the order of its columns, which the queries share.
struct KeyTile {
  uint4 raw[4][2];

  // Entries past the last only need some address: their scores are not stored.
  static __device__ const std::byte* Page(const IndexerArgs& a, const int32_t* table, int32_t entry,
                                          int32_t last, uint32_t* place) {
    const auto existing = static_cast<uint32_t>(Min(entry, last));
    const auto entries = static_cast<uint32_t>(a.entries_per_block);
    *place = existing % entries;
    return a.keys.data + table[existing / entries] * a.keys.page_bytes;
  }
  __device__ void Load(const IndexerArgs& a, const int32_t* table, int32_t first, int32_t last) {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      uint32_t place;
      const std::byte* page = Page(a, table, first + lane / 4 + 8 * i, last, &place);
      const auto* codes = reinterpret_cast<const uint4*>(page + place * kWidth) + lane % 4 * 2;
      raw[i][0] = __ldg(codes);
      raw[i][1] = __ldg(codes + 1);
    }
  }
  // Starts to bring the keys near: a line each.
  static __device__ void Prefetch(const IndexerArgs& a, const int32_t* table, int32_t first,
                                  int32_t last) {
    uint32_t place;
    const std::byte* page =
        Page(a, table, first + static_cast<int32_t>(threadIdx.x) % 32, last, &place);
    asm volatile("prefetch.global.L2 [%0];" ::"l"(page + place * kWidth));
  }
  // The scale of key lane / 4 + 8 (lane % 4), whose score this lane stores.
  static __device__ float Scale(const IndexerArgs& a, const int32_t* table, int32_t first,
                                int32_t last) {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    uint32_t place;
    const std::byte* page = Page(a, table, first + lane / 4 + lane % 4 * 8, last, &place);
    return __ldg(reinterpret_cast<const float*>(page + a.entries_per_block * kWidth) + place);
  }
  // Whether that key has a NaN code.
  __device__ bool HasNan() const {
    uint32_t bad = 0;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      uint32_t carry = 0;
#pragma unroll
      for (int32_t half = 0; half < 2; ++half) {
        const uint32_t word[4] = {raw[i][half].x, raw[i][half].y, raw[i][half].z, raw[i][half].w};
#pragma unroll
        for (const uint32_t w : word) carry |= (w & 0x7f7f7f7fU) + 0x01010101U;
      }
      if ((carry & 0x80808080U) != 0) bad |= 1U << i;
    }
    bad |= __shfl_xor_sync(0xffffffffU, bad, 1);
    bad |= __shfl_xor_sync(0xffffffffU, bad, 2);
    return (bad >> (threadIdx.x % 4) & 1U) != 0;
  }
  // Operand registers of both halves of the keys.
  __device__ void Decode(uint32_t (&operand)[2][kSteps][4]) const {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
#pragma unroll
      for (int32_t half = 0; half < 2; ++half) {
        const uint32_t word[4] = {raw[i][half].x, raw[i][half].y, raw[i][half].z, raw[i][half].w};
#pragma unroll
        for (int32_t w = 0; w < 4; ++w) {
          operand[i / 2][half * 4 + w][i % 2] = DecodePair(__byte_perm(word[w], 0, 0x1404));
          operand[i / 2][half * 4 + w][i % 2 + 2] = DecodePair(__byte_perm(word[w], 0, 0x3424));
        }
      }
    }
  }
};

// Brings a piece of bf16 values to shared memory without waiting for it.
__device__ inline void CopyPiece(uint4* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}

// One row's queries: [parts, head tiles, kPieces, 32 lanes] pieces of eight columns. bf16 pieces are on their way when it
// returns.
template <DType kStorage>
__device__ void StageRow(const IndexerArgs& a, int64_t row, uint4* q) {
  constexpr int32_t kRowParts = kParts<kStorage>;
  constexpr int32_t kMine = kMaxHeads / kTileHeads * kPieces * 32 / kThreads;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t pieces = a.heads / kTileHeads * kPieces * 32;
  const auto column = [](int32_t piece) {
    const int32_t lane = piece % 32;
    const int32_t head = piece / (kPieces * 32) * kTileHeads + lane / 4;
    return head * kWidth + lane % 4 * 32 + piece / 32 % kPieces * 8;
  };
  if constexpr (kStorage == DType::kBf16) {
    const auto* source = static_cast<const uint16_t*>(a.q.data) + row * a.q.stride;
#pragma unroll
    for (int32_t i = 0; i < kMine; ++i) {
      const int32_t piece = thread + i * kThreads;
      if (piece < pieces) CopyPiece(q + piece, source + column(piece));
    }
  } else {
    const auto* source = static_cast<const float*>(a.q.data) + row * a.q.stride;
    float4 x[kMine][2];
#pragma unroll
    for (int32_t i = 0; i < kMine; ++i) {
      const auto* at =
          reinterpret_cast<const float4*>(source + column(Min(thread + i * kThreads, pieces - 1)));
      x[i][0] = at[0];
      x[i][1] = at[1];
    }
#pragma unroll
    for (int32_t i = 0; i < kMine; ++i) {
      if (thread + i * kThreads >= pieces) break;
      uint32_t part[4][kRowParts];
      SplitBf16(x[i][0].x, x[i][0].y, part[0]);
      SplitBf16(x[i][0].z, x[i][0].w, part[1]);
      SplitBf16(x[i][1].x, x[i][1].y, part[2]);
      SplitBf16(x[i][1].z, x[i][1].w, part[3]);
#pragma unroll
      for (int32_t p = 0; p < kRowParts; ++p) {
        q[p * pieces + thread + i * kThreads] = {part[0][p], part[1][p], part[2][p], part[3][p]};
      }
    }
  }
}

// Queries and head weights of a group of rows, for the whole block. Rows that do not choose are left out.
template <DType kStorage>
__device__ void StageQueries(const IndexerArgs& a, int64_t first_row, int32_t rows,
                             const int32_t* visible, uint4* q, float* weight) {
  const int32_t row_pieces = kParts<kStorage> * (a.heads / kTileHeads) * kPieces * 32;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t r = 0; r < rows; ++r) {
    if (visible[r] > 0) StageRow<kStorage>(a, first_row + r, q + r * row_pieces);
  }
  const float scale = 1.0F / sqrtf(static_cast<float>(kWidth) * static_cast<float>(a.heads));
  for (int32_t r = 0; r < rows; ++r) {
    if (visible[r] == 0 || thread >= a.heads) continue;
    weight[r * a.heads + thread] = a.weight[(first_row + r) * a.heads + thread] * scale;
  }
  if constexpr (kStorage == DType::kBf16) asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
}

// The score of key lane / 4 + 8 (lane % 4) before its scale. `q` and `weight` are one row's.
template <int32_t kRowParts>
__device__ float TileScore(const uint32_t (&keys)[2][kSteps][4], const uint4* q,
                           const float* weight, int32_t heads) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t tiles = heads / kTileHeads;
  float total[4] = {};
  // Two tiles of heads at a time: a product waits for the one before it in its own sum.
  for (int32_t n = 0; n < tiles; n += 2) {
    float dot[2][2][4] = {};
    // The smallest parts first: they would be lost in a finished sum.
#pragma unroll
    for (int32_t part = kRowParts - 1; part >= 0; --part) {
#pragma unroll
      for (int32_t p = 0; p < kPieces; ++p) {
        uint4 x[2];
#pragma unroll
        for (int32_t t = 0; t < 2; ++t) {
          x[t] = q[((part * tiles + n + t) * kPieces + p) * 32 + lane];
        }
#pragma unroll
        for (int32_t i = 0; i < 4; ++i)
          MmaBf16(dot[i / 2][i % 2], keys[i % 2][2 * p], x[i / 2].x, x[i / 2].y);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i)
          MmaBf16(dot[i / 2][i % 2], keys[i % 2][2 * p + 1], x[i / 2].z, x[i / 2].w);
      }
    }
#pragma unroll
    for (int32_t t = 0; t < 2; ++t) {
      const float2 w =
          *reinterpret_cast<const float2*>(weight + (n + t) * kTileHeads + lane % 4 * 2);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        total[i] = fmaf(w.x, Relu(dot[t][i / 2][i % 2 * 2]), total[i]);
        total[i] = fmaf(w.y, Relu(dot[t][i / 2][i % 2 * 2 + 1]), total[i]);
      }
    }
  }
  float own = 0.0F;
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    total[i] += __shfl_xor_sync(0xffffffffU, total[i], 1);
    total[i] += __shfl_xor_sync(0xffffffffU, total[i], 2);
    if (lane % 4 == i) own = total[i];
  }
  return own;
}

// Grid: (blocks that share the entries, groups of `group_rows` rows of this turn). Dynamic shared memory: SharedBytes.
template <DType kStorage>
__global__ void __launch_bounds__(kThreads, 2)
    ScoreTiles(IndexerArgs a, int32_t first_row, int32_t turn_rows, int32_t group_rows) {
  constexpr int32_t kRows = kGroupRows<kStorage>;
  constexpr int32_t kRowParts = kParts<kStorage>;
  extern __shared__ uint4 shared[];
  __shared__ int32_t visible[kRows];
  __shared__ int32_t slot[kRows];
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t in_turn = static_cast<int32_t>(blockIdx.y) * group_rows;
  const int32_t rows = Min(group_rows, turn_rows - in_turn);
  const int64_t group = int64_t{first_row} + in_turn;
  int32_t seen = 0;
  if (thread < rows) {
    const bool chooses = Chooses(a, group + thread);
    seen = chooses ? a.visible[group + thread] : 0;
    visible[thread] = seen;
    slot[thread] = chooses ? a.meta.slot[group + thread] : -1;
  }
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * kBlockKeys;
  if (__syncthreads_or(seen > begin ? 1 : 0) == 0) return;
  const int32_t pieces = a.heads / kTileHeads * kPieces * 32;
  auto* weight = reinterpret_cast<float*>(shared + rows * kRowParts * pieces);
  const int32_t lane = thread % 32;
  const int32_t own = begin + thread / 32 * kWarpKeys;
  if (visible[0] > own) KeyTile::Prefetch(a, BlockTableOf(a, slot[0]), own, visible[0] - 1);
  StageQueries<kStorage>(a, group, rows, visible, shared, weight);
  for (int32_t r = 0; r < rows;) {
    // Neighbours of one slot share its keys; those that do not choose see none.
    const int32_t run = r;
    int32_t most = 0;
    for (; r < rows && slot[r] == slot[run]; ++r) most = Max(most, visible[r]);
    if (most == 0) continue;
    const int32_t* table = BlockTableOf(a, slot[run]);
    for (int32_t first = own; first < most; first += static_cast<int32_t>(gridDim.x) * kBlockKeys) {
      uint32_t keys[2][kSteps][4];
      float scale = KeyTile::Scale(a, table, first, most - 1);
      {
        KeyTile tile;
        tile.Load(a, table, first, most - 1);
        if (tile.HasNan()) scale = BitsFloat(0x7fc00000U);
        tile.Decode(keys);
      }
      const int32_t entry = first + lane / 4 + lane % 4 * 8;
      for (int32_t i = run; i < r; ++i) {
        if (visible[i] <= first) continue;
        const float score = TileScore<kRowParts>(keys, shared + i * kRowParts * pieces,
                                                 weight + i * a.heads, a.heads);
        if (entry >= visible[i]) continue;
        StoreScore(a, int64_t{in_turn + i} * a.max_entries + entry, score * scale);
      }
    }
  }
}

// Whether these kernels take the call: it depends on its shapes and storage alone.
inline bool Take(const IndexerArgs& a) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return a.keys.format == KvFormat::kFp8Index && a.keys.width == kWidth &&
         a.keys.block_entries == a.entries_per_block && a.heads % (2 * kTileHeads) == 0 &&
         a.heads <= kMaxHeads && a.q.stride % 8 == 0 && aligned(a.q.data) && aligned(a.keys.data);
}

template <DType kStorage>
void Launch(const IndexerArgs& a, int32_t first_row, int32_t rows, cudaStream_t stream) {
  constexpr int32_t kRows = kGroupRows<kStorage>;
  cudaFuncSetAttribute(ScoreTiles<kStorage>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       SharedBytes<kStorage>(kRows, kMaxHeads));
  // Few rows are spread over more blocks; of many, those of a slot share their keys. A block stages its queries once, so many
  // groups take fewer and longer blocks.
  constexpr int32_t kBlocks = 528;
  const int32_t group_rows = Min(kRows, CeilDiv(rows, 2));
  const int32_t groups = CeilDiv(rows, group_rows);
  const int32_t tiles = Max(1, CeilDiv(a.max_entries, kBlockKeys));
  const dim3 grid(static_cast<unsigned>(Min(tiles, CeilDiv(kBlocks, groups))),
                  static_cast<unsigned>(groups));
  const auto shared = static_cast<size_t>(SharedBytes<kStorage>(group_rows, a.heads));
  ScoreTiles<kStorage><<<grid, kThreads, shared, stream>>>(a, first_row, rows, group_rows);
}

}  // namespace firesteel::score_tiles
