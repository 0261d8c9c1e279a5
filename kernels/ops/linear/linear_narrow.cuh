// y = x W^T in fp32 for few outputs and many columns, such as the mix of hyper-connections: its time is that of a warp's columns.
//
// A cluster of blocks takes 8 rows and 32 outputs; each of its blocks one part of the columns (linear_tile.cuh: KSplit), each of
// the block's warps one run of them for 16 outputs. Parts are summed by the block that owns the row. Sums, and therefore
// bits, are those of LinearTile.
#pragma once

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/ops/linear/linear_tile.cuh"

namespace firesteel {

inline constexpr int kNarrowOutputs = 2 * kTileOutputs;  // of a block
inline constexpr int kNarrowThreads = kNarrowOutputs / kTileOutputs * kRunsOfPart * 32;
inline constexpr int32_t kNarrowMaxOutputs = 128;
inline constexpr int kNarrowSums = kTileRows * kNarrowOutputs;  // of a run

// Whether the kernel serves this product; a property of the weight and the row type alone.
inline bool IsNarrow(const LinearArgs& a) {
  return a.weight.dtype == DType::kF32 && a.x.dtype == DType::kF32 && a.groups == 1 &&
         a.weight.out <= kNarrowMaxOutputs && KSplit::For(a.weight.in).parts > 1;
}

// Columns [column, column + 16) of an fp32 row, read past the L1 cache; zeros where there are none.
struct NarrowRowPiece {
  uint4 word[4];

  __device__ void Load(const float* row, int32_t column, int32_t in) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      word[i] = row != nullptr && column < in
                    ? __ldcg(reinterpret_cast<const uint4*>(row + column) + i)
                    : uint4{0, 0, 0, 0};
    }
  }
  __device__ void Split(uint32_t (&pair)[kPiecePairs][kRowParts<DType::kF32>]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      SplitBf16(__uint_as_float(word[i].x), __uint_as_float(word[i].y), pair[2 * i]);
      SplitBf16(__uint_as_float(word[i].z), __uint_as_float(word[i].w), pair[2 * i + 1]);
    }
  }
};

// A warp's run of columns: 16 outputs times 8 rows.
struct NarrowRun {
  const Weight& w;
  int64_t output[2];  // of this lane; those past the end repeat the last one
  int32_t column;     // of this lane's first piece
  int32_t chunks;
  RawPiece<DType::kF32> next[2];

  __device__ NarrowRun(const Weight& w, int32_t first_output, int32_t run)
      : w(w), chunks(KSplit::For(w.in).run_chunks) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    output[0] = Min(first_output + lane / 4, w.out - 1);
    output[1] = Min(first_output + lane / 4 + 8, w.out - 1);
    column = run * chunks * kChunk + lane % 4 * kPieceColumns;
    LoadWeights(0);
  }
  __device__ void LoadWeights(int32_t chunk) {
    next[0] = LoadPiece<DType::kF32>(w, output[0], column + chunk * kChunk);
    next[1] = LoadPiece<DType::kF32>(w, output[1], column + chunk * kChunk);
  }
  // `row`: this lane's, null past the live ones.
  __device__ void Multiply(const float* row, float (&acc)[4]) {
    NarrowRowPiece x;
    x.Load(row, column, w.in);
#pragma unroll 1
    for (int32_t c = 0; c < chunks; ++c) {
      uint32_t a[2][kPiecePairs][kWeightParts<DType::kF32>];
      uint32_t b[kPiecePairs][kRowParts<DType::kF32>];
      DecodePiece<DType::kF32>(next[0], a[0]);
      DecodePiece<DType::kF32>(next[1], a[1]);
      x.Split(b);
      if (c + 1 < chunks) {
        LoadWeights(c + 1);
        x.Load(row, column + (c + 1) * kChunk, w.in);
      }
      MultiplyPieces<DType::kF32, DType::kF32>(a, b, acc);
    }
  }
};

// Grid: (tiles of outputs times parts, tiles of rows); a cluster has the parts.
__global__ void __launch_bounds__(kNarrowThreads) LinearNarrowKernel(LinearArgs a, int32_t parts) {
  __shared__ float sums[kRunsOfPart][kNarrowSums];
  __shared__ float inbox[kNarrowSums];  // [parts][rows / parts][kNarrowOutputs]
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int run = thread / 32 % kRunsOfPart;
  const int tile = thread / 32 / kRunsOfPart;
  const int32_t rank = static_cast<int32_t>(blockIdx.x) % parts;
  const int32_t first_output = static_cast<int32_t>(blockIdx.x) / parts * kNarrowOutputs;
  const int64_t first_row = int64_t{blockIdx.y} * kTileRows;
  NarrowRun columns(a.weight, first_output + tile * kTileOutputs, rank * kRunsOfPart + run);
  StartCluster();
  AllowNextKernel();
  WaitForEarlierKernels();
  const int64_t live = Min<int64_t>(__ldcg(a.live), a.rows);
  WaitForCluster();
  if (first_row >= live) return;

  const int64_t row = first_row + lane / 4;
  float acc[4] = {};
  columns.Multiply(row < live ? static_cast<const float*>(a.x.data) + row * a.x.stride : nullptr,
                   acc);
  float* to = sums[run] + lane % 4 * 2 * kNarrowOutputs + tile * kTileOutputs + lane / 4;
  to[0] = acc[0];
  to[kNarrowOutputs] = acc[1];
  to[8] = acc[2];
  to[kNarrowOutputs + 8] = acc[3];
  __syncthreads();
  static_assert(kNarrowThreads == kNarrowSums, "a thread has one row's sum of one output");
  const int32_t own_row = thread / kNarrowOutputs;
  const int32_t output = thread % kNarrowOutputs;
  float part = sums[0][thread];
#pragma unroll
  for (int r = 1; r < kRunsOfPart; ++r) part += sums[r][thread];
  const int32_t part_sums = kNarrowSums / parts;
  StoreToRank(inbox + rank * part_sums + own_row / parts * kNarrowOutputs + output,
              static_cast<uint32_t>(own_row % parts), part);
  ArriveAtCluster();
  WaitForCluster();
  if (thread >= part_sums) return;
  float sum = inbox[thread];
  for (int32_t p = 1; p < parts; ++p) sum += inbox[p * part_sums + thread];
  const int64_t y_row = first_row + own_row * parts + rank;
  if (y_row < live && first_output + output < a.weight.out) {
    StoreElement(a.y, y_row, first_output + output, sum);
  }
}

inline cudaError_t LaunchNarrow(cudaStream_t stream, const LinearArgs& a) {
  const int32_t parts = KSplit::For(a.weight.in).parts;
  const dim3 grid(static_cast<unsigned>(CeilDiv(a.weight.out, kNarrowOutputs) * parts),
                  static_cast<unsigned>(CeilDiv(a.rows, kTileRows)));
  return LaunchEarly(LinearNarrowKernel, {grid, kNarrowThreads, 0, static_cast<unsigned>(parts)},
                     stream, a, parts);
}

}  // namespace firesteel
