#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/ops/linear/linear_narrow.cuh"
#include "kernels/ops/linear/linear_split.cuh"
#include "kernels/ops/linear/linear_tile.cuh"

namespace firesteel {
namespace {

// Grid: (16-output tiles of all groups, row tiles).
template <DType kStorage, DType kRowType, int kRowTiles>
__global__ void __launch_bounds__(kLinearThreads) LinearKernel(LinearArgs a) {
  extern __shared__ float sums[];
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
                                            a.y, first_row, sums);
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

// Few blocks, of which one on each multiprocessor is best: none shares one while others have none, as blocks of a kernel that
// starts early would. Large clusters need that room.
int32_t LeastSplitShared(int32_t blocks, int32_t cluster) {
  constexpr int32_t kMultiprocessors = 132;
  constexpr int32_t kOverHalf = 116 << 10;
  return blocks <= kMultiprocessors && cluster <= 2 ? kOverHalf : 0;
}

// How many blocks share the rows of a tile. In large clusters each block of rows waits for the slowest of many, which another one
// on the same multiprocessor hides; in small ones reading the weights again costs more.
int32_t RowSharers(int32_t row_blocks, int32_t blocks, int32_t cluster) {
  constexpr int32_t kMostBlocks = 4 * 132;
  return cluster < 4 ? 1 : Max(1, Min(row_blocks, kMostBlocks / blocks));
}

template <DType kStorage, int kGroups, SplitShare kShare>
void LaunchSplit(Stream& stream, const LinearArgs& a, const SplitPlan& plan) {
  const int32_t block_rows = SplitBlockRows(a.rows);
  const int32_t parts = KSplit::For(a.weight.in).parts;
  const int32_t cluster = parts / plan.parts;
  const int32_t blocks = plan.blocks(a.weight);
  const int32_t row_blocks =
      kShare == SplitShare::kPart ? RowSharers(CeilDiv(a.rows, block_rows), blocks, cluster) : 1;
  const int32_t shared = Max(SplitLayout::For(block_rows, kGroups, parts, cluster).bytes,
                             LeastSplitShared(blocks * row_blocks, cluster));
  LaunchEarly(
      LinearSplitKernel<kStorage, kGroups, kShare>,
      {dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(row_blocks)),
       kGroups * kRunsOfPart * 32, static_cast<size_t>(shared), static_cast<unsigned>(cluster)},
      CudaStreamOf(stream), a, block_rows, plan.parts);
}

template <DType kStorage>
void LaunchSplit(Stream& stream, const LinearArgs& a) {
  const SplitPlan plan = SplitPlan::For(a);
  if (plan.groups == kSplitFewGroups) {
    LaunchSplit<kStorage, kSplitFewGroups, SplitShare::kPart>(stream, a, plan);
  } else if (SplitSteps(a.weight.in) > 1) {
    LaunchSplit<kStorage, kSplitManyGroups, SplitShare::kPartsOfSteps>(stream, a, plan);
  } else if (plan.parts == 1) {
    LaunchSplit<kStorage, kSplitManyGroups, SplitShare::kPart>(stream, a, plan);
  } else {
    LaunchSplit<kStorage, kSplitManyGroups, SplitShare::kParts>(stream, a, plan);
  }
}

// A matrix this high keeps the memory busy with whole tiles; splitting pays once there are rows to share.
bool IsBestSplit(const LinearArgs& a) {
  constexpr int32_t kManyOutputs = 16384;
  return CanSplit(a) && (a.weight.out < kManyOutputs || a.rows > kTileRows);
}

}  // namespace

void LinearCuda(Stream& stream, const LinearArgs& a) {
  if (!PiecesAligned(a.x, a.weight)) {
    const dim3 grid(static_cast<unsigned>(CeilDiv(a.weight.out, kLinearWarps)),
                    static_cast<unsigned>(CeilDiv(a.rows, kTileRows)));
    LinearAnyShapeKernel<<<grid, kLinearThreads, 0, CudaStreamOf(stream)>>>(a);
    return;
  }
  if (IsBestSplit(a)) {
    if (a.weight.dtype == DType::kBf16) return LaunchSplit<DType::kBf16>(stream, a);
    return LaunchSplit<DType::kF8E4M3>(stream, a);
  }
  if (IsNarrow(a)) {
    // A refused launch stays in the thread's error state, as any other does.
    static_cast<void>(LaunchNarrow(CudaStreamOf(stream), a));
    return;
  }
  DispatchLinear(a.weight.dtype, a.x.dtype, RowTilesFor(a.rows),
                 [&](auto storage, auto row_type, auto row_tiles) {
                   constexpr int kRowTiles = decltype(row_tiles)::value;
                   const dim3 grid(static_cast<unsigned>(
                                       a.groups * CeilDiv(a.weight.out / a.groups, kTileOutputs)),
                                   static_cast<unsigned>(CeilDiv(a.rows, kRowTiles * kTileRows)));
                   const auto kernel =
                       LinearKernel<decltype(storage)::value, decltype(row_type)::value, kRowTiles>;
                   const size_t shared = LinearSharedBytes<kRowTiles>(a.weight.in);
                   AllowShared(kernel, shared);
                   kernel<<<grid, kLinearThreads, shared, CudaStreamOf(stream)>>>(a);
                 });
}

}  // namespace firesteel
