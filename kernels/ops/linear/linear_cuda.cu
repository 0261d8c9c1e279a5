#include "kernels/cuda/cuda_stream.h"
#include "kernels/ops/linear/linear_tile.cuh"

namespace firesteel {
namespace {

// Grid: (16-output tiles of all groups, row tiles).
template <DType kStorage, DType kRowType, int kRowTiles>
__global__ void __launch_bounds__(kLinearThreads) LinearKernel(LinearArgs a) {
  __shared__ LinearShared<kRowTiles> shared;
  constexpr int32_t kRows = kRowTiles * kTileRows;
  const int64_t first_row = int64_t{blockIdx.y} * kRows;
  const int64_t live = Min(*a.live, a.rows);
  if (first_row >= live) return;
  const int32_t group_out = a.weight.out / a.groups;
  const int32_t group_tiles = CeilDiv(group_out, kTileOutputs);
  const int32_t group = static_cast<int32_t>(blockIdx.x) / group_tiles;
  const int64_t group_first = int64_t{group} * group_out;
  const int64_t first_output =
      group_first + static_cast<int64_t>(blockIdx.x) % group_tiles * kTileOutputs;
  const TileRowsOfX rows{a.x, int64_t{group} * a.weight.in, nullptr, first_row,
                         static_cast<int32_t>(Min<int64_t>(kRows, live - first_row))};
  LinearTile<kStorage, kRowType, kRowTiles>(a.weight, first_output, group_first + group_out, rows,
                                            a.y, first_row, shared);
}

// Grid: (outputs / warps, row tiles).
__global__ void __launch_bounds__(kLinearThreads) LinearAnyShapeKernel(LinearArgs a) {
  const int64_t first_row = int64_t{blockIdx.y} * kTileRows;
  const int64_t live = Min(*a.live, a.rows);
  const int32_t output = static_cast<int32_t>(blockIdx.x * kLinearWarps + threadIdx.x / 32);
  if (first_row >= live || output >= a.weight.out) return;
  const int32_t group = output / (a.weight.out / a.groups);
  const TileRowsOfX rows{a.x, int64_t{group} * a.weight.in, nullptr, first_row,
                         static_cast<int32_t>(Min<int64_t>(kTileRows, live - first_row))};
  LinearWarp(a.weight, output, rows, a.y, first_row);
}

}  // namespace

void LinearCuda(Stream& stream, const LinearArgs& a) {
  if (!PiecesAligned(a.x, a.weight)) {
    const dim3 grid(static_cast<unsigned>(CeilDiv(a.weight.out, kLinearWarps)),
                    static_cast<unsigned>(CeilDiv(a.rows, kTileRows)));
    LinearAnyShapeKernel<<<grid, kLinearThreads, 0, CudaStreamOf(stream)>>>(a);
    return;
  }
  DispatchLinear(a.weight.dtype, a.x.dtype, RowTilesFor(a.rows),
                 [&](auto storage, auto row_type, auto row_tiles) {
                   constexpr int kRowTiles = decltype(row_tiles)::value;
                   const dim3 grid(static_cast<unsigned>(
                                       a.groups * CeilDiv(a.weight.out / a.groups, kTileOutputs)),
                                   static_cast<unsigned>(CeilDiv(a.rows, kRowTiles * kTileRows)));
                   LinearKernel<decltype(storage)::value, decltype(row_type)::value, kRowTiles>
                       <<<grid, kLinearThreads, 0, CudaStreamOf(stream)>>>(a);
                 });
}

}  // namespace firesteel
