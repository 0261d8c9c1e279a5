// Scores of a few rows at a time go to scratch, then one block per row keeps the best. More rows than the scratch holds
// are taken in turns; a row's result does not depend on its turn.
#include "kernels/core/math.h"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/row_access.cuh"
#include "kernels/ops/indexer/choose_entries.cuh"
#include "kernels/ops/indexer/entry_row.cuh"
#include "kernels/ops/indexer/indexer.h"
#include "kernels/ops/indexer/score_tiles.cuh"
#include "kernels/ops/kv_decode.cuh"

namespace firesteel {
namespace {

constexpr int kScoreWarps = 8;
constexpr int kScoreThreads = kScoreWarps * kWarpSize;
constexpr int kTileKeys = kWarpSize;
constexpr int kPad = 4;  // keeps 16-byte reads of a column free of bank conflicts

// Keys of any width and storage. Grid: (blocks that share the entries, rows of this turn). Dynamic shared memory: q
// [heads, width], then keys [kTileKeys, width + kPad]. A warp takes every eighth head, a lane one entry of the tile.
__global__ void __launch_bounds__(kScoreThreads) ScoreKernel(IndexerArgs a, int32_t first_row) {
  extern __shared__ float4 memory[];
  __shared__ float partial[kScoreWarps][kTileKeys];
  const int64_t row = first_row + static_cast<int64_t>(blockIdx.y);
  if (!Chooses(a, row)) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  const int32_t width = a.keys.width;
  const int32_t visible = a.visible[row];
  const int32_t slot = a.meta.slot[row];
  float* q = reinterpret_cast<float*>(memory);
  float* keys = q + a.heads * width;
  for (int32_t i = thread; i < a.heads * width; i += kScoreThreads) q[i] = LoadElement(a.q, row, i);
  const float scale = 1.0F / sqrtf(static_cast<float>(width) * static_cast<float>(a.heads));
  const int32_t quads = width / 4;
  for (int32_t first = static_cast<int32_t>(blockIdx.x) * kTileKeys; first < visible;
       first += static_cast<int32_t>(gridDim.x) * kTileKeys) {
    const int32_t count = Min(kTileKeys, visible - first);
    __syncthreads();  // the last tile has been read, and q is there
    for (int32_t i = thread; i < count * quads; i += kScoreThreads) {
      const int32_t column = i % quads * 4;
      *reinterpret_cast<float4*>(keys + i / quads * (width + kPad) + column) =
          LoadKvQuad(a.keys, EntryRow(a, slot, first + i / quads), column);
    }
    __syncthreads();
    const float* key = keys + Min(lane, count - 1) * (width + kPad);
    float total = 0.0F;
    for (int32_t h = warp; h < a.heads; h += kScoreWarps) {
      float dot = 0.0F;
      for (int32_t c = 0; c < width; c += 4) {
        const float4 x = *reinterpret_cast<const float4*>(q + h * width + c);
        const float4 k = *reinterpret_cast<const float4*>(key + c);
        dot += x.x * k.x;
        dot += x.y * k.y;
        dot += x.z * k.z;
        dot += x.w * k.w;
      }
      total += a.weight[row * a.heads + h] * scale * Max(dot, 0.0F);
    }
    partial[warp][lane] = total;
    __syncthreads();
    if (warp != 0 || lane >= count) continue;
    float sum = 0.0F;
    for (int w = 0; w < kScoreWarps; ++w) sum += partial[w][lane];
    StoreScore(a, (row - first_row) * a.max_entries + first + lane, sum);
  }
}

// One block per row of this turn. kHeld: keys of a thread in registers, 0 for rows of any length.
template <int32_t kHeld>
__global__ void __launch_bounds__(choose_entries::kThreads)
    ChooseEntries(IndexerArgs a, int32_t first_row) {
  __shared__ int32_t shared[choose_entries::kRadix];  // counters, then the list
  const int64_t row = first_row + static_cast<int64_t>(blockIdx.x);
  constexpr int32_t kThreads = choose_entries::kThreads;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  AllowNextKernel();
  WaitForEarlierKernels();
  const int32_t visible = __ldcg(a.visible + row);
  const int32_t kept = Min(visible, a.top_k);
  const choose_entries::KeptList list{a, row, __ldcg(a.meta.slot + row), shared};
  if (row >= __ldcg(a.live)) return;
  if (thread == 0) a.out.valid[row] = kept;
  for (int32_t i = kept + thread; a.chosen != nullptr && i < a.out.width; i += kThreads) {
    a.chosen[row * a.out.width + i] = -1;
  }
  if (visible <= a.top_k) {
    for (int32_t j = thread; j < visible; j += kThreads) list.Put(j, j);
    return;
  }
  choose_entries::RowKeys<kHeld> keys(a.scores + (row - first_row) * a.max_entries, visible);
  const choose_entries::Threshold threshold = FindThreshold(keys, a.top_k, shared);
  ListKept(keys, threshold, list);
  list.Finish(kept);
}

void ScoreRows(const IndexerArgs& a, int32_t first_row, int32_t rows, cudaStream_t stream) {
  const size_t shared =
      (static_cast<size_t>(a.heads) * static_cast<size_t>(a.keys.width) +
       static_cast<size_t>(kTileKeys) * static_cast<size_t>(a.keys.width + kPad)) *
      sizeof(float);
  cudaFuncSetAttribute(ScoreKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(shared));
  // Enough blocks for a long context; those without entries return at once.
  constexpr int32_t kMaxBlocksPerRow = 128;
  const int32_t blocks = Max(1, Min(kMaxBlocksPerRow, CeilDiv(a.max_entries, kTileKeys)));
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(rows));
  ScoreKernel<<<grid, kScoreThreads, shared, stream>>>(a, first_row);
}

void ChooseRows(const IndexerArgs& a, int32_t first_row, int32_t rows, cudaStream_t stream) {
  constexpr int32_t kThreads = choose_entries::kThreads;
  constexpr int32_t kFew = 4;
  constexpr int32_t kMany = 26;
  const LaunchShape shape{dim3(static_cast<unsigned>(rows)), kThreads, 0, 1};
  if (a.max_entries <= kFew * kThreads) {
    LaunchEarly(ChooseEntries<kFew>, shape, stream, a, first_row);
  } else if (a.max_entries <= kMany * kThreads) {
    LaunchEarly(ChooseEntries<kMany>, shape, stream, a, first_row);
  } else {
    LaunchEarly(ChooseEntries<0>, shape, stream, a, first_row);
  }
}

}  // namespace

void IndexerCuda(Stream& stream, const IndexerArgs& a) {
  const cudaStream_t handle = CudaStreamOf(stream);
  const bool tiles = score_tiles::Take(a);
  for (int32_t first = 0; first < a.rows; first += a.score_rows) {
    const int32_t rows = Min(a.score_rows, a.rows - first);
    if (!tiles) {
      ScoreRows(a, first, rows, handle);
    } else if (a.q.dtype == DType::kBf16) {
      score_tiles::Launch<DType::kBf16>(a, first, rows, handle);
    } else {
      score_tiles::Launch<DType::kF32>(a, first, rows, handle);
    }
    ChooseRows(a, first, rows, handle);
  }
}

}  // namespace firesteel
