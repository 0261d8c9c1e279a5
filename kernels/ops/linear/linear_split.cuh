// y = x W^T for bf16 rows and weights of the usual shapes, in few microseconds: all weights are asked for at once.
//
// A cluster of blocks takes a tile of outputs. Each of its blocks takes some of the parts of the columns (linear_tile.cuh:
// KSplit), each of its warps one run of them for 16 outputs. A warp reads its first weights before it waits for the kernel ahead,
// keeps them decoded in registers and takes the rows, 48 at most at a time, from shared memory. A block sends its parts of a
// row's sums to the block that owns the row.
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

// Whether the kernel serves this product; a property of the weight and the row type alone.
inline bool CanSplit(const LinearArgs& a) {
  const Weight& w = a.weight;
  const bool stored =
      w.dtype == DType::kBf16 || (w.dtype == DType::kF8E4M3 && w.block == kSplitFp8Block);
  const KSplit split = KSplit::For(w.in);
  return stored && a.x.dtype == DType::kBf16 && w.in == split.parts * kPartColumns &&
         w.out / a.groups % (kSplitFewGroups * kTileOutputs) == 0;
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

  // `ahead`: starts bringing those of the next part to the L2 cache as well.
  __device__ void Load(const Weight& w, int32_t first_output, int32_t first_column, bool ahead) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int c = 0; c < kSplitRunChunks; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t output = first_output + half * 8 + lane / 4;
        const int32_t column = first_column + c * kChunk + lane % 4 * kPieceColumns;
        const uint8_t* source = WeightRow<kStorage>(w, output) +
                                int64_t{column} * kPieceBytes<kStorage> / kPieceColumns;
        if (ahead) PrefetchL2(source + kPartColumns * kPieceBytes<kStorage> / kPieceColumns);
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

// The part's columns of `count` rows from `first_row` on.
template <int kThreads>
__device__ void StageSplitRows(const ConstRows& x, int32_t first_row, int32_t count,
                               int32_t first_column, std::byte* staged) {
  constexpr int kUnits = kPartColumns * 2 / 16;
  static_assert(kThreads % kUnits == 0);
  const int32_t unit = static_cast<int32_t>(threadIdx.x) % kUnits;
  int32_t row = static_cast<int32_t>(threadIdx.x) / kUnits;
  const auto* source = static_cast<const uint16_t*>(x.data) + int64_t{first_row + row} * x.stride +
                       first_column + unit * 8;
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

// Rows [0, count) of `staged` times a warp's weights, to its run's sums of its tile of outputs.
template <int kGroups>
__device__ void MultiplySplitRows(const uint32_t (&a)[kSplitRunChunks][kPiecePairs / 2][4],
                                  const std::byte* staged, int32_t count, float* sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int32_t n = 0; n * kTileRows < count; ++n) {
    float acc[4] = {};
    const std::byte* row =
        staged + (n * kTileRows + lane / 4) * kSplitRowBytes + lane % 4 * (kPieceColumns * 2);
#pragma unroll
    for (int c = 0; c < kSplitRunChunks; ++c) {
      const auto* v = reinterpret_cast<const uint4*>(row + c * kChunk * 2);
      const uint4 low = v[0];
      const uint4 high = v[1];
      MmaBf16(acc, a[c][0], low.x, low.y);
      MmaBf16(acc, a[c][1], low.z, low.w);
      MmaBf16(acc, a[c][2], high.x, high.y);
      MmaBf16(acc, a[c][3], high.z, high.w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n * kGroups * kSplitPartial + i * 33 + lane] = acc[i];
  }
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
  const int shift = __ffs(cluster) - 1;
#pragma unroll 1
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count * kOutputs; i += kThreads) {
    const int32_t row = i / kOutputs;
    const int32_t output = i % kOutputs;
    StoreToRank(inbox_of_part + (row >> shift) * kOutputs + output,
                static_cast<uint32_t>(row & (cluster - 1)),
                SplitPartSum<kGroups>(sums, layout.run_sums, row, output));
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

// Grid: (tiles of outputs times blocks of a cluster). kOnePart: a block has one part, whose weights stay in registers.
template <DType kStorage, int kGroups, bool kOnePart>
__global__ void __launch_bounds__(kGroups* kRunsOfPart * 32, 8 / kGroups)
    LinearSplitKernel(LinearArgs a, int32_t block_rows, int32_t block_parts) {
  constexpr int kThreads = kGroups * kRunsOfPart * 32;
  extern __shared__ __align__(16) std::byte shared[];
  const int run = static_cast<int>(threadIdx.x) / 32 % kRunsOfPart;
  const int group = static_cast<int>(threadIdx.x) / 32 / kRunsOfPart;
  const int32_t parts = a.weight.in / kPartColumns;
  const int32_t cluster = parts / block_parts;
  const int32_t rank = static_cast<int32_t>(blockIdx.x) % cluster;
  const int32_t first_output =
      static_cast<int32_t>(blockIdx.x) / cluster * (kGroups * kTileOutputs);
  const int32_t x_column =
      first_output / (a.weight.out / a.groups) * a.weight.in + rank * block_parts * kPartColumns;
  const SplitLayout layout = SplitLayout::For(block_rows, kGroups, parts, cluster);
  auto* sums = reinterpret_cast<float*>(shared + layout.sums_bytes);
  auto* inbox = reinterpret_cast<float*>(shared + layout.inbox_bytes);
  const int32_t warp_output = first_output + group * kTileOutputs;
  const int32_t warp_column = rank * block_parts * kPartColumns + run * (kSplitRunChunks * kChunk);

  SplitWeights<kStorage> weights;
  weights.Load(a.weight, warp_output, warp_column, !kOnePart);
  if (cluster > 1) StartCluster();
  AllowNextKernel();
  WaitForEarlierKernels();
  const int32_t live = Min(__ldcg(a.live), a.rows);
  StageSplitRows<kThreads>(a.x, 0, Min(block_rows, live), x_column, shared);
  uint32_t fragment[kSplitRunChunks][kPiecePairs / 2][4];
  if (kOnePart) weights.Decode(fragment);
#pragma unroll 1
  for (int32_t first_row = 0; first_row < live; first_row += block_rows) {
    const int32_t count = Min(block_rows, live - first_row);
#pragma unroll 1
    for (int32_t part = 0; part < (kOnePart ? 1 : block_parts); ++part) {
      const bool last = kOnePart || part + 1 == block_parts;
      if (!kOnePart) weights.Decode(fragment);
      WaitForCopies();
      __syncthreads();
      MultiplySplitRows<kGroups>(fragment, shared + run * (kSplitRunChunks * kChunk * 2), count,
                                 sums + run * layout.run_sums + group * kSplitPartial);
      const int32_t next = last ? 0 : part + 1;
      weights = {};  // decoded; the registers are free
      if (!kOnePart && (!last || first_row + block_rows < live)) {
        weights.Load(a.weight, warp_output, warp_column + next * kPartColumns,
                     next + 1 < block_parts);
      }
      __syncthreads();
      const int32_t next_row = last ? first_row + block_rows : first_row;
      StageSplitRows<kThreads>(a.x, next_row, Min(block_rows, live - next_row),
                               x_column + next * kPartColumns, shared);
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
    if (first_row + block_rows < live) ArriveAtCluster();
  }
  // Without live rows the first barrier is still open.
  if (cluster > 1 && live <= 0) WaitForCluster();
}

}  // namespace firesteel
