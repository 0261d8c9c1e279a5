// The portable kernel: any head_dim that is a multiple of 16, every cache format, fp32 arithmetic.
//
// A block serves kQueries (row, head) pairs of one key list. Keys come in tiles of 32 list entries, the window's list first; tiles
// start anew at the extra list. Scores of a tile are one warp's work per query pair with a key per lane; the softmax is
// rescaled once per tile. Tile borders depend on the list alone, so a row's bits depend on its list, its query and nothing else.
#include <cmath>

#include "kernels/core/math.h"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/row_access.cuh"
#include "kernels/ops/kv_decode.cuh"
#include "kernels/ops/sparse_attention/mma_attention.cuh"
#include "kernels/ops/sparse_attention/sm90/decode_attention.h"
#include "kernels/ops/sparse_attention/sm90/draft_attention.h"
#include "kernels/ops/sparse_attention/sparse_attention.h"

namespace firesteel {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kQueries = 16;
constexpr int kQueriesPerWarp = kQueries / kWarps;
constexpr int kTileKeys = kWarpSize;
constexpr int kMaxHeadDim = 2 * kThreads;  // a thread owns two columns of the output
constexpr int kPad = 4;                    // keeps 16-byte reads of a column free of bank conflicts

struct Shared {
  float* q;      // [kQueries, head_dim]
  float* keys;   // [kTileKeys, head_dim + kPad]
  float* p;      // [kQueries, kTileKeys]
  float* scale;  // [kQueries] factor of the sums so far, then of the result
};

__device__ Shared Carve(float* memory, int32_t head_dim) {
  Shared s;
  s.q = memory;
  s.keys = s.q + kQueries * head_dim;
  s.p = s.keys + kTileKeys * (head_dim + kPad);
  s.scale = s.p + kQueries * kTileKeys;
  return s;
}

size_t SharedBytes(int32_t head_dim) {
  return (static_cast<size_t>(kQueries + kTileKeys) * static_cast<size_t>(head_dim) +
          kTileKeys * kPad + kQueries * kTileKeys + kQueries) *
         sizeof(float);
}

// Softmax state of the warp's queries, the same in every lane.
struct Softmax {
  float top[kQueriesPerWarp];
  float sum[kQueriesPerWarp];
};

__device__ void LoadKeys(const KvPages& pages, const int32_t* index, int32_t count,
                         int32_t head_dim, float* keys) {
  const int32_t quads = head_dim / 4;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count * quads; i += kThreads) {
    const int32_t key = i / quads;
    const int32_t column = i % quads * 4;
    *reinterpret_cast<float4*>(keys + key * (head_dim + kPad) + column) =
        LoadKvQuad(pages, index[key], column);
  }
}

__device__ void ScoreTile(const Shared& s, int32_t count, int32_t head_dim, float scale,
                          Softmax& state) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const float* key = s.keys + Min(lane, count - 1) * (head_dim + kPad);
  const float* q = s.q + warp * kQueriesPerWarp * head_dim;
  float dot[kQueriesPerWarp] = {};
  for (int32_t c = 0; c < head_dim; c += 4) {
    const float4 k = *reinterpret_cast<const float4*>(key + c);
#pragma unroll
    for (int i = 0; i < kQueriesPerWarp; ++i) {
      const float4 v = *reinterpret_cast<const float4*>(q + i * head_dim + c);
      dot[i] += v.x * k.x;
      dot[i] += v.y * k.y;
      dot[i] += v.z * k.z;
      dot[i] += v.w * k.w;
    }
  }
#pragma unroll
  for (int i = 0; i < kQueriesPerWarp; ++i) {
    const float score = lane < count ? scale * dot[i] : -INFINITY;
    const float top = Max(state.top[i], WarpReduce(score, MaxOp{}));
    // All scores so far are -infinity (or the query is not a number): nothing is weighted yet.
    const bool none = top == -INFINITY;
    const float p = none ? 0.0F : expf(score - top);
    const float rescale = none ? 0.0F : expf(state.top[i] - top);
    state.sum[i] = state.sum[i] * rescale + WarpReduce(p, AddOp{});
    state.top[i] = top;
    const int query = warp * kQueriesPerWarp + i;
    s.p[query * kTileKeys + lane] = p;
    if (lane == 0) s.scale[query] = rescale;
  }
}

// acc[q] = acc[q] * scale[q] + sum_t p[q][t] key_t for the thread's two columns.
__device__ void WeightTile(const Shared& s, int32_t count, int32_t head_dim, int32_t column,
                           float (&acc)[kQueries][2]) {
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    acc[i][0] *= s.scale[i];
    acc[i][1] *= s.scale[i];
  }
  for (int32_t t = 0; t < count; ++t) {
    const float2 k = *reinterpret_cast<const float2*>(s.keys + t * (head_dim + kPad) + column);
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      const float p = s.p[i * kTileKeys + t];
      acc[i][0] += p * k.x;
      acc[i][1] += p * k.y;
    }
  }
}

// Grid: (query groups of a list, lists). Queries of a list are its rows times the heads, rows outermost.
__global__ void __launch_bounds__(kThreads) AttendKernel(SparseAttentionArgs a) {
  extern __shared__ float4 memory[];
  const int64_t list = blockIdx.y;
  const int64_t live = Min(*a.live, a.rows);
  const int64_t first_row = list * a.rows_per_list;
  if (first_row >= live) return;
  const int32_t head_dim = a.head_dim;
  const Shared s = Carve(reinterpret_cast<float*>(memory), head_dim);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const int32_t queries =
      static_cast<int32_t>(Min<int64_t>(a.rows_per_list, live - first_row)) * a.heads;
  const int32_t first_query = static_cast<int32_t>(blockIdx.x) * kQueries;
  if (first_query >= queries) return;

  for (int32_t i = thread; i < kQueries * head_dim; i += kThreads) {
    const int32_t query = first_query + i / head_dim;
    s.q[i] = query < queries ? LoadElement(a.q, first_row + query / a.heads,
                                           query % a.heads * head_dim + i % head_dim)
                             : 0.0F;
  }
  Softmax state;
#pragma unroll
  for (int i = 0; i < kQueriesPerWarp; ++i) {
    state.top[i] = -INFINITY;
    state.sum[i] = 0.0F;
  }
  float acc[kQueries][2] = {};
  const int32_t column = 2 * thread;
  const bool owns_columns = column < head_dim;
  const int pools = a.extra_rows.valid == nullptr ? 1 : 2;
  for (int pool = 0; pool < pools; ++pool) {
    const KvPages& pages = pool == 0 ? a.window : a.extra;
    const SparseRows& rows = pool == 0 ? a.window_rows : a.extra_rows;
    const int32_t valid = rows.valid[list];
    const int32_t* index = rows.index + list * rows.width;
    for (int32_t first = 0; first < valid; first += kTileKeys) {
      const int32_t count = Min(kTileKeys, valid - first);
      __syncthreads();  // the last tile has been read, and q is there
      LoadKeys(pages, index + first, count, head_dim, s.keys);
      __syncthreads();
      ScoreTile(s, count, head_dim, a.scale, state);
      __syncthreads();
      if (owns_columns) WeightTile(s, count, head_dim, column, acc);
    }
  }
  __syncthreads();
  if (thread % kWarpSize == 0) {
#pragma unroll
    for (int i = 0; i < kQueriesPerWarp; ++i) {
      const int32_t query = warp * kQueriesPerWarp + i;
      const float sink = a.sink[(first_query + query) % a.heads];
      // The sink joins the denominator only. It may be the largest of all.
      const float top = Max(state.top[i], sink);
      float factor = 0.0F;
      // An infinite sink leaves nothing to the keys.
      if (state.top[i] != -INFINITY && sink != INFINITY) {
        const float shrink = expf(state.top[i] - top);
        factor = shrink / (state.sum[i] * shrink + expf(sink - top));
      }
      s.scale[query] = factor;
    }
  }
  __syncthreads();
  if (!owns_columns) return;
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    const int32_t query = first_query + i;
    if (query >= queries) break;
    const int64_t row = first_row + query / a.heads;
    const int64_t at = int64_t{query % a.heads} * head_dim + column;
    StoreElement(a.out, row, at, acc[i][0] * s.scale[i]);
    StoreElement(a.out, row, at + 1, acc[i][1] * s.scale[i]);
  }
}

void LaunchPortable(cudaStream_t stream, const SparseAttentionArgs& a) {
  FIRESTEEL_CHECK(a.head_dim % 16 == 0 && a.head_dim <= kMaxHeadDim,
                  "head_dim is " + std::to_string(a.head_dim) + ", needs a multiple of 16 up to " +
                      std::to_string(kMaxHeadDim));
  const size_t shared = SharedBytes(a.head_dim);
  cudaFuncSetAttribute(AttendKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(shared));
  const dim3 grid(static_cast<unsigned>(CeilDiv(a.rows_per_list * a.heads, kQueries)),
                  static_cast<unsigned>(CeilDiv(a.rows, a.rows_per_list)));
  AttendKernel<<<grid, kThreads, shared, stream>>>(a);
}

template <int kParts, KvFormat kFormat, int kQueryTiles>
void LaunchMma(cudaStream_t stream, const SparseAttentionArgs& a) {
  using mma_attention::Shared;
  auto* kernel = mma_attention::AttendKernel<kParts, kFormat, kQueryTiles>;
  constexpr int kShared = sizeof(Shared<kParts, kQueryTiles>);
  static_assert(kShared <= 227 * 1024, "a block's shared memory on Hopper");
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  const dim3 grid(static_cast<unsigned>(
                      CeilDiv(a.rows_per_list * a.heads, Shared<kParts, kQueryTiles>::kQueries)),
                  static_cast<unsigned>(CeilDiv(a.rows, a.rows_per_list)));
  kernel<<<grid, mma_attention::kThreads, kShared, stream>>>(a);
}

// Wider blocks decode a list's keys fewer times, narrower ones finish sooner while the GPU has room. Same bits.
template <KvFormat kFormat>
void LaunchMmaFormat(cudaStream_t stream, const SparseAttentionArgs& a) {
  constexpr int64_t kRoomyBlocks = 256;  // about two for each multiprocessor
  const int64_t queries = int64_t{a.rows_per_list} * a.heads;
  const int64_t narrow_blocks =
      CeilDiv<int64_t>(queries, mma_attention::kTileQueries) * CeilDiv(a.rows, a.rows_per_list);
  const bool wide = narrow_blocks > kRoomyBlocks && queries > mma_attention::kTileQueries;
  if (a.q.dtype == DType::kF32) {
    if (wide) return LaunchMma<3, kFormat, 2>(stream, a);
    return LaunchMma<3, kFormat, 1>(stream, a);
  }
  if (wide) return LaunchMma<1, kFormat, 4>(stream, a);
  LaunchMma<1, kFormat, 1>(stream, a);
}

void LaunchDraft(cudaStream_t stream, const SparseAttentionArgs& a, int32_t multiprocessors) {
  const sm90::DraftTile tile = sm90::SelectDraftTile(CeilDiv(a.rows, a.rows_per_list),
                                                     a.rows_per_list, a.heads, multiprocessors);
  // A refused launch stays in the thread's error state, as any other does.
  static_cast<void>(sm90::LaunchDraftAttention(stream, a, tile));
}

}  // namespace

void SparseAttentionCuda(Stream& stream, const SparseAttentionArgs& a) {
  if (a.rows == 0) return;
  const cudaStream_t handle = CudaStreamOf(stream);
  const bool hopper = IsHopper(stream);
  if (hopper && sm90::DecodeAttentionServes(a)) {
    // A failed launch stays in the thread's error state for Synchronize().
    sm90::LaunchDecodeAttention(
        handle, a, sm90::SelectDecodeHeads(a.rows, a.heads, MultiprocessorsOf(stream)));
    return;
  }
  if (!mma_attention::Serves(a)) return LaunchPortable(handle, a);
  if (hopper && sm90::DraftAttentionServes(a))
    return LaunchDraft(handle, a, MultiprocessorsOf(stream));
  if (a.window.format == KvFormat::kFp8) return LaunchMmaFormat<KvFormat::kFp8>(handle, a);
  LaunchMmaFormat<KvFormat::kBf16>(handle, a);
}

}  // namespace firesteel
