// y = x W^T for bf16 rows and weights of the usual shapes, in few microseconds: all weights are asked for at once.
//
// A cluster of blocks takes a tile of outputs. Each of its blocks takes some of the parts of the columns (linear_tile.cuh:
// KSplit), each of its warps one run of them for 16 outputs. A warp reads its first weights before it waits for the kernel ahead,
// keeps them decoded in registers and takes the rows, 48 at most at a time, from shared memory. A block sends its parts of a
// row's sums to the block that owns the row. Columns beyond eight parts of 512 make the runs longer, which are then taken in steps.
// Sums, and therefore bits, are those of LinearTile.
#pragma once

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/ops/linear/linear_tile.cuh"

namespace firesteel {

inline constexpr int kSplitRunChunks = kPartColumns / kRunsOfPart / kChunk;
inline constexpr int kSplitFp8Block = 128;  // one scale for a warp's weights
inline constexpr int kSplitFewGroups = 2;   // warps of a run in a block, each with 16 outputs
inline constexpr int kSplitManyGroups = 4;
inline constexpr int32_t kSplitMaxRows = 48;
inline constexpr int kSplitRowBytes = kPartColumns * 2 + 16;  // padded against bank conflicts
inline constexpr int kSplitPartial = 4 * 33;  // sums of one tensor-core product, padded as well

// A run is taken in steps of so many columns: one step up to eight parts of 512 columns, more where the parts are longer.
inline constexpr int kSplitStepColumns = kSplitRunChunks * kChunk;

__host__ __device__ inline int32_t SplitSteps(int32_t in) {
  return KSplit::For(in).run_chunks / kSplitRunChunks;
}

// Whether the kernel serves this product; a property of the weight and the row type alone.
inline bool CanSplit(const LinearArgs& a) {
  const Weight& w = a.weight;
  const bool stored =
      w.dtype == DType::kBf16 || (w.dtype == DType::kF8E4M3 && w.block == kSplitFp8Block);
  const int32_t groups = SplitSteps(w.in) > 1 ? kSplitManyGroups : kSplitFewGroups;
  return stored && a.x.dtype == DType::kBf16 &&
         w.in % (KSplit::For(w.in).parts * kPartColumns) == 0 &&
         w.out / a.groups % (groups * kTileOutputs) == 0;
}

// How a product is cut into blocks; a property of the weight alone, though any choice gives the same bits.
struct SplitPlan {
  int32_t groups;  // of warps in a block, each with 16 outputs
  int32_t parts;   // of a block

  int32_t blocks(const Weight& w) const {
    return w.out / (groups * kTileOutputs) * (KSplit::For(w.in).parts / parts);
  }

  // Large tiles mean less traffic of rows, as long as every multiprocessor has a block. Several parts to a block mean less
  // traffic of sums; but larger clusters than pairs do not fill the machine unless two of their blocks share a multiprocessor.
  static SplitPlan For(const LinearArgs& a) {
    constexpr int32_t kWantedBlocks = 120;
    const SplitPlan many{kSplitManyGroups, 1};
    const int32_t blocks = many.blocks(a.weight);
    if (SplitSteps(a.weight.in) > 1) return {kSplitManyGroups, kMaxParts / 2};
    const bool fits = a.weight.out / a.groups % (kSplitManyGroups * kTileOutputs) == 0;
    if (!fits || blocks < kWantedBlocks) return {kSplitFewGroups, 1};
    const int32_t parts = KSplit::For(a.weight.in).parts;
    if (parts > 2 && blocks >= parts * kWantedBlocks) return {kSplitManyGroups, parts};
    if (blocks >= 2 * kWantedBlocks && parts == 4) return {kSplitManyGroups, 2};
    return many;
  }
};

inline int32_t SplitBlockRows(int32_t rows) { return Min(RoundUp(rows, kTileRows), kSplitMaxRows); }

// Shared memory of a block; floats where no unit is named.
struct SplitLayout {
  int32_t sums_bytes;  // [kRunsOfPart][products][kSplitPartial], after the rows
  int32_t
      inbox_bytes;  // [parts][own rows][outputs]; totals [rows][outputs] where a block has all parts
  int32_t bytes;
  int32_t run_sums;   // of a run
  int32_t part_sums;  // of a part in the inbox

  __host__ __device__ static SplitLayout For(int32_t block_rows, int32_t groups, int32_t parts,
                                             int32_t cluster) {
    SplitLayout l{};
    l.run_sums = block_rows / kTileRows * groups * kSplitPartial;
    l.part_sums = CeilDiv(block_rows, cluster) * groups * kTileOutputs;
    l.sums_bytes = block_rows * kSplitRowBytes;
    l.inbox_bytes = l.sums_bytes + 4 * kRunsOfPart * l.run_sums;
    l.bytes = l.inbox_bytes + 4 * l.part_sums * (cluster == 1 ? (parts == 1 ? 0 : 1) : parts);
    return l;
  }
};

// A warp's weights: 16 outputs times a run, as stored and as operands of the tensor core.
template <DType kStorage>
struct SplitWeights {
  RawPiece<kStorage> raw[kSplitRunChunks][2];

  // `ahead`: unless 0, starts bringing those so many columns further to the L2 cache as well.
  __device__ void Load(const Weight& w, int32_t first_output, int32_t first_column, int32_t ahead) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int c = 0; c < kSplitRunChunks; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t output = first_output + half * 8 + lane / 4;
        const int32_t column = first_column + c * kChunk + lane % 4 * kPieceColumns;
        const uint8_t* source = WeightRow<kStorage>(w, output) +
                                int64_t{column} * kPieceBytes<kStorage> / kPieceColumns;
        if (ahead != 0) PrefetchL2(source + ahead * kPieceBytes<kStorage> / kPieceColumns);
#pragma unroll
        for (int i = 0; i < kPieceBytes<kStorage> / 16; ++i) {
          const uint4 v = LoadOnce16(source + i * 16);
          raw[c][half].word[4 * i] = v.x;
          raw[c][half].word[4 * i + 1] = v.y;
          raw[c][half].word[4 * i + 2] = v.z;
          raw[c][half].word[4 * i + 3] = v.w;
        }
      }
    }
    const uint32_t scale = PieceScale<kStorage>(w, first_output, first_column);
#pragma unroll
    for (int c = 0; c < kSplitRunChunks; ++c) raw[c][0].scale = raw[c][1].scale = scale;
  }

  // Starts bringing a run's `columns` from `first_column` on to the L2 cache: whole rows of it, which memory reads best.
  __device__ static void Prefetch(const Weight& w, int32_t first_output, int32_t first_column,
                                  int32_t columns) {
    constexpr int32_t kLineColumns = 128 * kPieceColumns / kPieceBytes<kStorage>;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const uint8_t* row = WeightRow<kStorage>(w, first_output + lane / 2) +
                         int64_t{first_column} * kPieceBytes<kStorage> / kPieceColumns;
    for (int32_t c = lane % 2 * kLineColumns; c < columns; c += 2 * kLineColumns) {
      PrefetchL2(row + c * kPieceBytes<kStorage> / kPieceColumns);
    }
  }

  __device__ void Decode(uint32_t (&a)[kSplitRunChunks][kPiecePairs / 2][4]) const {
#pragma unroll
    for (int c = 0; c < kSplitRunChunks; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t pair[kPiecePairs][1];
        DecodePiece<kStorage>(raw[c][half], pair);
#pragma unroll
        for (int j = 0; j < kPiecePairs / 2; ++j) {
          a[c][j][half] = pair[2 * j][0];
          a[c][j][half + 2] = pair[2 * j + 1][0];
        }
      }
    }
  }
};

// A step's columns of `count` rows from `first_row` on: some of each run, whose starts lie `run_columns` apart.
template <int kThreads>
__device__ void StageSplitRows(const ConstRows& x, int32_t first_row, int32_t count,
                               int32_t first_column, int32_t run_columns, std::byte* staged) {
  constexpr int kUnits = kPartColumns * 2 / 16;
  constexpr int kRunUnits = kUnits / kRunsOfPart;
  static_assert(kThreads % kUnits == 0);
  const int32_t unit = static_cast<int32_t>(threadIdx.x) % kUnits;
  int32_t row = static_cast<int32_t>(threadIdx.x) / kUnits;
  const auto* source = static_cast<const uint16_t*>(x.data) + int64_t{first_row + row} * x.stride +
                       first_column + unit / kRunUnits * run_columns + unit % kRunUnits * 8;
  std::byte* to = staged + row * kSplitRowBytes + unit * 16;
#pragma unroll 2
  for (; row < count; row += kThreads / kUnits) {
    CopyAsync16(to, source);
    source += kThreads / kUnits * x.stride;
    to += kThreads / kUnits * kSplitRowBytes;
  }
}

// Where the sum of (row, output) is among the sums of a run, for blocks of `tiles` tiles of 16 outputs.
__device__ inline int32_t SplitPlace(int32_t row, int32_t output, int32_t tiles) {
  const int32_t product = row / kTileRows * tiles + output / kTileOutputs;
  const int32_t half = output % kTileOutputs / 8;
  return product * kSplitPartial + (row % 2 + 2 * half) * 33 + output % 8 * 4 + row % kTileRows / 2;
}

// `kTiles` tiles of staged rows times a warp's weights, side by side; `sums` holds what earlier steps left if `continues`.
template <int kGroups, int kTiles>
__device__ void MultiplySplitTiles(const uint32_t (&a)[kSplitRunChunks][kPiecePairs / 2][4],
                                   const std::byte* row, bool continues, float* sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float acc[kTiles][4] = {};
  if (continues) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[n][i] = sums[n * kGroups * kSplitPartial + i * 33 + lane];
    }
  }
#pragma unroll
  for (int c = 0; c < kSplitRunChunks; ++c) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint4 v[kTiles];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        v[n] = reinterpret_cast<const uint4*>(row + n * kTileRows * kSplitRowBytes +
                                              c * kChunk * 2)[half];
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) MmaBf16(acc[n], a[c][2 * half], v[n].x, v[n].y);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) MmaBf16(acc[n], a[c][2 * half + 1], v[n].z, v[n].w);
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n * kGroups * kSplitPartial + i * 33 + lane] = acc[n][i];
  }
}

// Rows [0, count) of `staged` times a warp's weights, to its run's sums of its tile of outputs.
template <int kGroups, int kTiles>
__device__ void MultiplySplitRows(const uint32_t (&a)[kSplitRunChunks][kPiecePairs / 2][4],
                                  const std::byte* staged, int32_t count, bool continues,
                                  float* sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::byte* row = staged + lane / 4 * kSplitRowBytes + lane % 4 * (kPieceColumns * 2);
  int32_t tiles = CeilDiv(count, kTileRows);
#pragma unroll 1
  for (; tiles >= kTiles; tiles -= kTiles) {
    MultiplySplitTiles<kGroups, kTiles>(a, row, continues, sums);
    row += kTiles * kTileRows * kSplitRowBytes;
    sums += kTiles * kGroups * kSplitPartial;
  }
  if (kTiles > 1 && tiles > 0) MultiplySplitTiles<kGroups, 1>(a, row, continues, sums);
}

// A part's sum of (row, output): its runs in order.
template <int kGroups>
__device__ float SplitPartSum(const float* sums, int32_t run_sums, int32_t row, int32_t output) {
  const float* run = sums + SplitPlace(row, output, kGroups);
  float sum = run[0];
#pragma unroll
  for (int r = 1; r < kRunsOfPart; ++r) sum += run[r * run_sums];
  return sum;
}

// Adds a part's sums to those before it, for a block that has all parts, and stores the last ones.
template <int kGroups>
__device__ void AddSplitSums(const LinearArgs& a, const float* sums, const SplitLayout& layout,
                             int32_t first_row, int32_t count, int32_t first_output, bool first,
                             bool last, float* total) {
  constexpr int kOutputs = kGroups * kTileOutputs;
  constexpr int kThreads = kGroups * kRunsOfPart * 32;
#pragma unroll 1
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count * kOutputs; i += kThreads) {
    const int32_t row = i / kOutputs;
    const int32_t output = i % kOutputs;
    float sum = SplitPartSum<kGroups>(sums, layout.run_sums, row, output);
    if (!first) sum = total[i] + sum;
    if (last) {
      StoreElement(a.y, first_row + row, first_output + output, sum);
    } else {
      total[i] = sum;
    }
  }
}

// Sends a part's sums to the blocks that own the rows: row r belongs to block r mod `cluster`.
template <int kGroups>
__device__ void SendSplitSums(const float* sums, const SplitLayout& layout, int32_t count,
                              int32_t cluster, float* inbox_of_part) {
  constexpr int kOutputs = kGroups * kTileOutputs;
  constexpr int kThreads = kGroups * kRunsOfPart * 32;
  constexpr int kWidth = 4;  // outputs that are sent at once
  const int shift = __ffs(cluster) - 1;
#pragma unroll 1
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count * (kOutputs / kWidth);
       i += kThreads) {
    const int32_t row = i / (kOutputs / kWidth);
    const int32_t output = i % (kOutputs / kWidth) * kWidth;
    // Of four aligned outputs each lies four floats after the one before.
    const float* run = sums + SplitPlace(row, output, kGroups);
    float sum[kWidth];
#pragma unroll
    for (int o = 0; o < kWidth; ++o) sum[o] = run[4 * o];
#pragma unroll
    for (int r = 1; r < kRunsOfPart; ++r) {
#pragma unroll
      for (int o = 0; o < kWidth; ++o) sum[o] += run[r * layout.run_sums + 4 * o];
    }
    StoreToRank(inbox_of_part + (row >> shift) * kOutputs + output,
                static_cast<uint32_t>(row & (cluster - 1)),
                make_float4(sum[0], sum[1], sum[2], sum[3]));
  }
}

// Stores the rows of block `rank`: the parts that were sent to it in order.
template <int kGroups>
__device__ void StoreOwnRows(const LinearArgs& a, const float* inbox, const SplitLayout& layout,
                             int32_t first_row, int32_t count, int32_t first_output, int32_t parts,
                             int32_t rank, int32_t cluster) {
  constexpr int kOutputs = kGroups * kTileOutputs;
  constexpr int kThreads = kGroups * kRunsOfPart * 32;
  const int32_t own_rows = (count - rank + cluster - 1) / cluster;
#pragma unroll 1
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < own_rows * kOutputs; i += kThreads) {
    float sum = inbox[i];
#pragma unroll 4
    for (int p = 1; p < parts; ++p) sum += inbox[p * layout.part_sums + i];
    StoreElement(a.y, first_row + i / kOutputs * cluster + rank, first_output + i % kOutputs, sum);
  }
}

// What a block has of the columns.
enum class SplitShare : uint8_t {
  kPart,   // one part of one step, whose weights stay in registers
  kParts,  // several parts of one step each
  kPartsOfSteps,
};

// The columns of a block, in the steps that it takes them in: those of a part follow each other.
template <SplitShare kShare>
struct SplitColumns {
  int32_t steps;  // of a part
  int32_t block_steps;

  __device__ SplitColumns(int32_t in, int32_t block_parts)
      : steps(kShare == SplitShare::kPartsOfSteps ? SplitSteps(in) : 1),
        block_steps(kShare == SplitShare::kPart ? 1 : block_parts * steps) {}

  __device__ int32_t run_columns() const { return steps * kSplitStepColumns; }
  // Where a step starts, from the block's first column on.
  __device__ int32_t StepColumn(int32_t i) const {
    if (kShare != SplitShare::kPartsOfSteps) return i * kPartColumns;
    return i / steps * (kRunsOfPart * run_columns()) + i % steps * kSplitStepColumns;
  }

  // Reads a warp's weights of step i and asks for what follows: the next step, or all of the next part at its first step.
  template <DType kStorage>
  __device__ void Load(const Weight& w, int32_t first_output, int32_t warp_column, int32_t i,
                       SplitWeights<kStorage>& weights) const {
    const bool ahead = kShare == SplitShare::kParts && i + 1 < block_steps;
    weights.Load(w, first_output, warp_column + StepColumn(i), ahead ? kPartColumns : 0);
    if (kShare == SplitShare::kPartsOfSteps && i % steps == 0 && i + steps < block_steps) {
      weights.Prefetch(w, first_output, warp_column + StepColumn(i + steps), run_columns());
    }
  }
};

// Grid: (tiles of outputs times blocks of a cluster, blocks that share the rows; 1 unless kPart).
template <DType kStorage, int kGroups, SplitShare kShare>
__global__ void __launch_bounds__(kGroups* kRunsOfPart * 32, 8 / kGroups)
    LinearSplitKernel(LinearArgs a, int32_t block_rows, int32_t block_parts) {
  constexpr bool kOnePart = kShare == SplitShare::kPart;
  constexpr bool kSteps = kShare == SplitShare::kPartsOfSteps;
  // Two tiles side by side, where there are registers for them.
  constexpr int kTiles = kStorage == DType::kBf16 && !kOnePart ? 1 : 2;
  constexpr int kThreads = kGroups * kRunsOfPart * 32;
  extern __shared__ __align__(16) std::byte shared[];
  const int run = static_cast<int>(threadIdx.x) / 32 % kRunsOfPart;
  const int group = static_cast<int>(threadIdx.x) / 32 / kRunsOfPart;
  const int32_t parts = KSplit::For(a.weight.in).parts;
  const SplitColumns<kShare> columns(a.weight.in, block_parts);
  const int32_t run_columns = columns.run_columns();
  const int32_t cluster = parts / block_parts;
  const int32_t rank = static_cast<int32_t>(blockIdx.x) % cluster;
  const int32_t first_output =
      static_cast<int32_t>(blockIdx.x) / cluster * (kGroups * kTileOutputs);
  const int32_t first_column = rank * block_parts * kRunsOfPart * run_columns;
  const int32_t x_column = first_output / (a.weight.out / a.groups) * a.weight.in + first_column;
  const SplitLayout layout = SplitLayout::For(block_rows, kGroups, parts, cluster);
  auto* sums = reinterpret_cast<float*>(shared + layout.sums_bytes);
  auto* inbox = reinterpret_cast<float*>(shared + layout.inbox_bytes);
  const int32_t warp_output = first_output + group * kTileOutputs;
  const int32_t warp_column = first_column + run * run_columns;

  SplitWeights<kStorage> weights;
  columns.Load(a.weight, warp_output, warp_column, 0, weights);
  if (kSteps) weights.Prefetch(a.weight, warp_output, warp_column, run_columns);
  if (cluster > 1) StartCluster();
  AllowNextKernel();
  WaitForEarlierKernels();
  const int32_t live = Min(__ldcg(a.live), a.rows);
  const int32_t own_first_row = kOnePart ? static_cast<int32_t>(blockIdx.y) * block_rows : 0;
  const int32_t stride_rows = kOnePart ? static_cast<int32_t>(gridDim.y) * block_rows : block_rows;
  StageSplitRows<kThreads>(a.x, own_first_row, Min(block_rows, live - own_first_row), x_column,
                           run_columns, shared);
  uint32_t fragment[kSplitRunChunks][kPiecePairs / 2][4];
  if (kOnePart) weights.Decode(fragment);
#pragma unroll 1
  for (int32_t first_row = own_first_row; first_row < live; first_row += stride_rows) {
    const int32_t count = Min(block_rows, live - first_row);
#pragma unroll 1
    for (int32_t i = 0; i < columns.block_steps; ++i) {
      const int32_t part = kSteps ? i / columns.steps : i;
      const int32_t step = kSteps ? i % columns.steps : 0;
      const bool last = i + 1 == columns.block_steps;
      if (!kOnePart) weights.Decode(fragment);
      WaitForCopies();
      __syncthreads();
      MultiplySplitRows<kGroups, kTiles>(fragment, shared + run * (kSplitStepColumns * 2), count,
                                         step > 0,
                                         sums + run * layout.run_sums + group * kSplitPartial);
      const int32_t next = last ? 0 : i + 1;
      weights = {};  // decoded; the registers are free
      if (!kOnePart && (!last || first_row + stride_rows < live)) {
        columns.Load(a.weight, warp_output, warp_column, next, weights);
      }
      __syncthreads();
      const int32_t next_row = last ? first_row + stride_rows : first_row;
      StageSplitRows<kThreads>(a.x, next_row, Min(block_rows, live - next_row),
                               x_column + columns.StepColumn(next), run_columns, shared);
      if (kSteps && step + 1 < columns.steps) continue;
      if (cluster == 1) {
        AddSplitSums<kGroups>(a, sums, layout, first_row, count, first_output, part == 0, last,
                              inbox);
        continue;
      }
      if (part == 0) WaitForCluster();  // the blocks have started, and used what they got before
      SendSplitSums<kGroups>(sums, layout, count, cluster,
                             inbox + (rank * block_parts + part) * layout.part_sums);
    }
    if (cluster == 1) continue;
    ArriveAtCluster();
    WaitForCluster();
    StoreOwnRows<kGroups>(a, inbox, layout, first_row, count, first_output, parts, rank, cluster);
    if (first_row + stride_rows < live) ArriveAtCluster();
  }
  // Without live rows the first barrier is still open.
  if (cluster > 1 && live <= own_first_row) WaitForCluster();
}

}  // namespace firesteel
