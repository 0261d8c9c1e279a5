// One tile of y = x W^T: 16 outputs times up to 8 * kRowTiles rows, weights read once, by one thread block.
//
// Weights are the A operand of the tensor core (16 outputs), rows of x its columns. Columns k are taken in chunks of 64, of
// which lane quarter t takes 16 consecutive columns, so that every load is a whole vector. fp32 values enter as three bf16
// parts, which keeps all their bits.
// The order of summation depends on the number of columns alone (KSplit): the chunks are cut into equal runs, each summed in
// ascending order; four runs in order make a part, the parts in order the result. Neither the rows nor kRowTiles matter.
#pragma once

#include "kernels/core/check.h"
#include "kernels/core/math.h"
#include "kernels/core/tensor.h"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/row_access.cuh"
#include "kernels/ops/linear/weight_piece.cuh"

namespace firesteel {

inline constexpr int kLinearWarps = 8;
inline constexpr int kLinearThreads = kLinearWarps * 32;
inline constexpr int kTileOutputs = 16;
inline constexpr int kTileRows = 8;  // rows of one tensor-core product
inline constexpr int kChunk = 4 * kPieceColumns;

// fp32 rows enter as three parts, bf16 rows as they are.
template <DType kRowType>
inline constexpr int kRowParts = kRowType == DType::kF32 ? 3 : 1;

// Where a tile reads its rows: row i of the tile is source row `source(i)` of x, from `first_column` on.
struct TileRowsOfX {
  ConstRows x;
  int64_t first_column;
  const int32_t* source;  // null: row first_row + i itself
  int64_t first_row;
  int32_t count;  // live rows of the tile

  __device__ int64_t SourceRow(int32_t i) const {
    return source == nullptr ? first_row + i : source[first_row + i];
  }
};

// Columns [column, column + 16) at `row`, zeros where there are none.
template <DType kRowType>
__device__ void LoadRowPiece(const std::byte* row, int32_t column, int32_t in,
                             uint32_t (&pair)[kPiecePairs][kRowParts<kRowType>]) {
  constexpr int kVectors = kPieceColumns * DTypeBytes(kRowType) / 16;
  uint4 v[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    v[i] = row != nullptr && column < in
               ? *(reinterpret_cast<const uint4*>(row + int64_t{column} * DTypeBytes(kRowType)) + i)
               : uint4{0, 0, 0, 0};
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if constexpr (kRowType == DType::kF32) {
      SplitBf16(__uint_as_float(v[i].x), __uint_as_float(v[i].y), pair[2 * i]);
      SplitBf16(__uint_as_float(v[i].z), __uint_as_float(v[i].w), pair[2 * i + 1]);
    } else {
      pair[4 * i][0] = v[i].x;
      pair[4 * i + 1][0] = v[i].y;
      pair[4 * i + 2][0] = v[i].z;
      pair[4 * i + 3][0] = v[i].w;
    }
  }
}

// How the columns of a product are cut: four runs of chunks to a part.
inline constexpr int kRunsOfPart = 4;
inline constexpr int kMaxParts = 8;
inline constexpr int kPartColumns = 512;  // where the number of columns allows it

struct KSplit {
  int32_t parts;
  int32_t run_chunks;

  __host__ __device__ static KSplit For(int32_t in) {
    int32_t parts = 1;
    while (parts < kMaxParts && parts * kPartColumns < in) parts *= 2;
    return {parts, CeilDiv(CeilDiv(in, kChunk), parts * kRunsOfPart)};
  }
  __host__ __device__ int32_t runs() const { return parts * kRunsOfPart; }
};

// Shared memory of a tile: [runs][rows][kTileOutputs] sums.
template <int kRowTiles>
size_t LinearSharedBytes(int32_t in) {
  return sizeof(float) * static_cast<size_t>(KSplit::For(in).runs()) * kRowTiles * kTileRows *
         kTileOutputs;
}

// The sum of one (row, output) over the runs; `stride` floats lie between runs.
__device__ inline float SumOfRuns(const float* run, int64_t stride, int32_t parts) {
  float sum = 0.0F;
  for (int32_t p = 0; p < parts; ++p) {
    float part = run[0];
#pragma unroll
    for (int r = 1; r < kRunsOfPart; ++r) part += run[r * stride];
    sum = p == 0 ? part : sum + part;
    run += kRunsOfPart * stride;
  }
  return sum;
}

// acc += one chunk of 16 outputs by 8 rows, from its decoded weights and rows.
template <DType kStorage, DType kRowType>
__device__ void MultiplyPieces(const uint32_t (&a)[2][kPiecePairs][kWeightParts<kStorage>],
                               const uint32_t (&b)[kPiecePairs][kRowParts<kRowType>],
                               float (&acc)[4]) {
#pragma unroll
  for (int j = 0; j < kPiecePairs / 2; ++j) {
    // The smallest products first. Pairs of parts beyond the 24th bit of the product are left out.
#pragma unroll
    for (int order = 2; order >= 0; --order) {
#pragma unroll
      for (int p = 0; p < kWeightParts<kStorage>; ++p) {
        const int q = order - p;
        if (q < 0 || q >= kRowParts<kRowType>) continue;
        const uint32_t fragment[4] = {a[0][2 * j][p], a[1][2 * j][p], a[0][2 * j + 1][p],
                                      a[1][2 * j + 1][p]};
        MmaBf16(acc, fragment, b[2 * j][q], b[2 * j + 1][q]);
      }
    }
  }
}

// acc += one chunk: `a` is its decoded weights, rows n * 8 + g are at row[n].
template <DType kStorage, DType kRowType, int kRowTiles>
__device__ void MultiplyChunk(const uint32_t (&a)[2][kPiecePairs][kWeightParts<kStorage>],
                              const std::byte* const (&row)[kRowTiles], int32_t column, int32_t in,
                              float (&acc)[kRowTiles][4]) {
#pragma unroll
  for (int n = 0; n < kRowTiles; ++n) {
    uint32_t b[kPiecePairs][kRowParts<kRowType>];
    LoadRowPiece<kRowType>(row[n], column, in, b);
    MultiplyPieces<kStorage, kRowType>(a, b, acc[n]);
  }
}

// Outputs [first_output, first_output + 16) below `output_end`; y row first_y_row + i gets tile row i. `shared` has
// LinearSharedBytes.
template <DType kStorage, DType kRowType, int kRowTiles>
__device__ void LinearTile(const Weight& w, int64_t first_output, int64_t output_end,
                           const TileRowsOfX& t, const Rows& y, int64_t first_y_row,
                           float* shared) {
  constexpr int kSums = kRowTiles * kTileRows * kTileOutputs;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4;
  const int quarter = lane % 4;

  const std::byte* row[kRowTiles];
#pragma unroll
  for (int n = 0; n < kRowTiles; ++n) {
    const int i = n * kTileRows + g;
    row[n] = i < t.count ? static_cast<const std::byte*>(t.x.data) +
                               (t.SourceRow(i) * t.x.stride + t.first_column) * DTypeBytes(kRowType)
                         : nullptr;
  }
  // Outputs past the end repeat the last row and are not stored.
  const int64_t output[2] = {min(first_output + g, output_end - 1),
                             min(first_output + g + 8, output_end - 1)};

  const KSplit split = KSplit::For(w.in);
  const int32_t runs = split.runs();
  RawPiece<kStorage> next[2];
  const auto load = [&](int32_t run, int32_t i) {
    const int32_t column = (run * split.run_chunks + i) * kChunk + quarter * kPieceColumns;
    next[0] = LoadPiece<kStorage>(w, output[0], column);
    next[1] = LoadPiece<kStorage>(w, output[1], column);
  };
  if (warp < runs) load(warp, 0);
  for (int32_t run = warp; run < runs; run += kLinearWarps) {
    float acc[kRowTiles][4] = {};
    for (int32_t i = 0; i < split.run_chunks; ++i) {
      uint32_t a[2][kPiecePairs][kWeightParts<kStorage>];
      DecodePiece<kStorage>(next[0], a[0]);
      DecodePiece<kStorage>(next[1], a[1]);
      if (i + 1 < split.run_chunks) {
        load(run, i + 1);
      } else if (run + kLinearWarps < runs) {
        load(run + kLinearWarps, 0);
      }
      MultiplyChunk<kStorage, kRowType, kRowTiles>(
          a, row, (run * split.run_chunks + i) * kChunk + quarter * kPieceColumns, w.in, acc);
    }
    float* sums = shared + int64_t{run} * kSums + 2 * quarter * kTileOutputs + g;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      sums[n * kTileRows * kTileOutputs] = acc[n][0];
      sums[(n * kTileRows + 1) * kTileOutputs] = acc[n][1];
      sums[n * kTileRows * kTileOutputs + 8] = acc[n][2];
      sums[(n * kTileRows + 1) * kTileOutputs + 8] = acc[n][3];
    }
  }

  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < t.count * kTileOutputs; i += kLinearThreads) {
    const int o = i % kTileOutputs;
    if (first_output + o >= output_end) continue;
    StoreElement(y, first_y_row + i / kTileOutputs, first_output + o,
                 SumOfRuns(shared + i, kSums, split.parts));
  }
  __syncthreads();  // the sums may be overwritten by the block's next tile
}

// Rows per tile, in units of 8, for a padded row count: any choice gives the same bits.
constexpr int RowTilesFor(int64_t rows) { return rows <= kTileRows ? 1 : 4; }

// Calls f(storage, row_type, row_tiles) with the three as compile-time constants.
template <DType kValue>
struct DTypeConstant {
  static constexpr DType value = kValue;
};
template <int kValue>
struct IntConstant {
  static constexpr int value = kValue;
};

template <typename F>
void DispatchLinear(DType storage, DType row_type, int row_tiles, const F& f) {
  const auto by_tiles = [&](auto s, auto r) {
    if (row_tiles == 1) return f(s, r, IntConstant<1>{});
    return f(s, r, IntConstant<4>{});
  };
  const auto by_rows = [&](auto s) {
    if (row_type == DType::kF32) return by_tiles(s, DTypeConstant<DType::kF32>{});
    return by_tiles(s, DTypeConstant<DType::kBf16>{});
  };
  switch (storage) {
    case DType::kF32: return by_rows(DTypeConstant<DType::kF32>{});
    case DType::kBf16: return by_rows(DTypeConstant<DType::kBf16>{});
    case DType::kF8E4M3: return by_rows(DTypeConstant<DType::kF8E4M3>{});
    case DType::kF4E2M1x2: return by_rows(DTypeConstant<DType::kF4E2M1x2>{});
    default: FIRESTEEL_CHECK(false, "linear cannot decode this weight type");
  }
}

inline bool IsAligned(const void* pointer, int64_t alignment) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(alignment) == 0;
}

// Whether the tile's 16-byte reads serve a product of these rows and a weight of this shape at these addresses. Depends on
// what is multiplied, not on how much: a shape is served in one way for every number of rows.
inline bool PiecesAligned(const ConstRows& x, const Weight& weight) {
  return IsAligned(x.data, 16) && x.stride * DTypeBytes(x.dtype) % 16 == 0 &&
         IsAligned(weight.data, 16) && weight.in % kPieceColumns == 0;
}

// The fallback for shapes that are no multiples of a vector: one warp per output, columns in strides of a lane.
__device__ inline float WeightValue(const Weight& w, int64_t o, int32_t k) {
  const auto* bytes = static_cast<const uint8_t*>(w.data);
  const int64_t at = o * w.in + k;
  switch (w.dtype) {
    case DType::kF32: return static_cast<const float*>(w.data)[at];
    case DType::kBf16: return Bf16ToFloat(static_cast<const uint16_t*>(w.data)[at]);
    case DType::kF8E4M3:
      return E4M3ToFloat(bytes[at]) *
             E8M0ToFloat(w.scale[o / w.block * ((w.in + w.block - 1) / w.block) + k / w.block]);
    default:
      return E2M1ToFloat(static_cast<uint8_t>(bytes[at / 2] >> (4 * (k % 2)) & 15)) *
             E8M0ToFloat(w.scale[o * (w.in / 32) + k / 32]);
  }
}

__device__ inline void LinearWarp(const Weight& w, int64_t output, const TileRowsOfX& t,
                                  const Rows& y, int64_t first_y_row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int32_t i = 0; i < t.count; ++i) {
    const int64_t source = t.SourceRow(i);
    float sum = 0.0F;
    for (int32_t k = lane; k < w.in; k += 32) {
      sum += LoadElement(t.x, source, t.first_column + k) * WeightValue(w, output, k);
    }
    sum = WarpReduce(sum, AddOp{});
    if (lane == 0) StoreElement(y, first_y_row + i, output, sum);
  }
}

}  // namespace firesteel
