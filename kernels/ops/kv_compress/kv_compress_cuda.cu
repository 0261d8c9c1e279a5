#include <cmath>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/ops/kv_compress/kv_compress.h"
#include "kernels/ops/kv_encode.cuh"

namespace firesteel {
namespace {

constexpr int kThreads = 256;
constexpr int kHeldTokens = 8;  // two overlapping groups of four

__device__ int64_t Channels(const KvCompressArgs& a) {
  return int64_t{a.pages.width} * (a.overlap ? 2 : 1);
}

// Offset of a token's row in the tail pool, or -1 when it is not among the last `ratio` tokens of its context block.
__device__ int64_t TailOffset(const KvCompressArgs& a, int32_t slot, int32_t position) {
  const int32_t tokens = a.slots.block_tokens[a.context_group];
  const int32_t place = position % tokens - (tokens - a.ratio);
  if (!a.overlap || place < 0) return -1;
  const int64_t table = int64_t{slot} * a.slots.max_blocks[a.context_group];
  const int32_t block = __ldcg(a.slots.block_table[a.context_group] + table + position / tokens);
  return (int64_t{block} * a.ratio + place) * a.pages.width;
}

// Where the channels of one token are; `ape` is null where the score has it already.
struct TokenSource {
  const float* value;
  const float* score;
  const float* ape;
};

// The `width` channels from `first_channel` on of the token at `position`, for the entry that `row` completes.
__device__ TokenSource LocateToken(const KvCompressArgs& a, int64_t row, int32_t position,
                                   int32_t first_channel) {
  const int32_t sequence = __ldcg(a.meta.sequence + row);
  const int32_t slot = __ldcg(a.meta.slot + row);
  const int32_t start = __ldcg(a.sequences.start + sequence);
  const int64_t channels = Channels(a);
  // Only a group before the row's own has its channels first; its tail is another block's.
  const int64_t tail = position < start && first_channel == 0 ? TailOffset(a, slot, position) : -1;
  if (tail >= 0) return {a.tail.kv + tail, a.tail.score + tail, nullptr};
  if (position < start) {
    const int64_t at = (int64_t{slot} * a.ring + position % a.ring) * channels + first_channel;
    return {a.ring_kv + at, a.ring_score + at, nullptr};
  }
  const int64_t source =
      (__ldcg(a.sequences.first_row + sequence) + position - start) * channels + first_channel;
  return {a.kv + source, a.score + source, a.ape + position % a.ratio * channels + first_channel};
}

__device__ float Score(const TokenSource& t, int32_t c) {
  const float score = __ldcg(t.score + c);
  return t.ape == nullptr ? score : score + t.ape[c];
}

// Softmax over tokens of one channel: value / sum is what it pools to.
struct Pooled {
  float sum;
  float value;
};

// Few tokens: all their channels are asked for at once. The same sums as PoolMany.
__device__ Pooled PoolHeld(const TokenSource* token, int32_t count, int32_t c) {
  float score[kHeldTokens];
  float value[kHeldTokens];
#pragma unroll
  for (int i = 0; i < kHeldTokens; ++i) {
    score[i] = i < count ? Score(token[i], c) : -INFINITY;
    value[i] = i < count ? __ldcg(token[i].value + c) : 0.0F;
  }
  float top = -INFINITY;
#pragma unroll
  for (int i = 0; i < kHeldTokens; ++i) top = Max(top, score[i]);
  Pooled p{0.0F, 0.0F};
#pragma unroll
  for (int i = 0; i < kHeldTokens; ++i) {
    if (i >= count) break;
    const float weight = expf(score[i] - top);
    p.sum += weight;
    p.value += weight * value[i];
  }
  return p;
}

__device__ Pooled PoolMany(const TokenSource* token, int32_t count, int32_t c) {
  float top = -INFINITY;
#pragma unroll 8
  for (int32_t i = 0; i < count; ++i) top = Max(top, Score(token[i], c));
  Pooled p{0.0F, 0.0F};
#pragma unroll 8
  for (int32_t i = 0; i < count; ++i) {
    const float weight = expf(Score(token[i], c) - top);
    p.sum += weight;
    p.value += weight * __ldcg(token[i].value + c);
  }
  return p;
}

// One block per row that completes an entry. Dynamic shared memory: TokenSource [pool], then the pooled row [width].
__global__ void __launch_bounds__(kThreads) CompressKernel(KvCompressArgs a) {
  extern __shared__ unsigned char shared[];
  AllowNextKernel();
  WaitForEarlierKernels();
  const int64_t row = blockIdx.x;
  const int32_t entry_row = __ldcg(a.entry_row + row);
  const int32_t position = __ldcg(a.meta.position + row);
  if (row >= Min(__ldcg(a.live), a.rows) || entry_row < 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t width = a.pages.width;
  const int32_t own = a.overlap ? a.ratio : 0;  // where this group's tokens start in the pool
  const int32_t pool = own + a.ratio;
  auto* token = reinterpret_cast<TokenSource*>(shared);
  auto* pooled = reinterpret_cast<float*>(token + pool);
  const int32_t group = (position + 1) / a.ratio - 1;
  const int32_t first = group == 0 ? own : 0;  // group -1 contributes nothing
  for (int32_t i = first + thread; i < pool; i += kThreads) {
    token[i] = LocateToken(a, row, group * a.ratio + i - own, i < own || !a.overlap ? 0 : width);
  }
  __syncthreads();
  float squares = 0.0F;
  for (int32_t c = thread; c < width; c += kThreads) {
    const Pooled p = pool - first <= kHeldTokens ? PoolHeld(token + first, pool - first, c)
                                                 : PoolMany(token + first, pool - first, c);
    pooled[c] = p.value / p.sum;
    squares += pooled[c] * pooled[c];
  }
  const float inverse =
      1.0F / sqrtf(BlockSum<kThreads>(squares) / static_cast<float>(width) + a.eps);
  for (int32_t c = thread; c < width; c += kThreads) {
    pooled[c] = pooled[c] * inverse * Bf16ToFloat(a.weight[c]);
  }
  __syncthreads();
  const int32_t half = a.rope.rope / 2;
  const int64_t angle = int64_t{group} * a.ratio * half;
  float* tail = pooled + width - a.rope.rope;
  for (int32_t i = thread; i < half; i += kThreads) {
    RotatePair(a.rope.cos[angle + i], a.rope.sin[angle + i], &tail[2 * i], &tail[2 * i + 1]);
  }
  __syncthreads();
  EncodeKvRowInBlock<kThreads>(a.pages, entry_row, pooled);
}

// Runs after all entries: a ring or tail row may still be read by an entry of this step. Grid: (column blocks, rows).
__global__ void __launch_bounds__(kThreads) KeepKernel(KvCompressArgs a) {
  AllowNextKernel();
  WaitForEarlierKernels();
  const int64_t row = blockIdx.y;
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t channels = Channels(a);
  if (row >= Min(__ldcg(a.live), a.rows) || c >= channels) return;
  const int32_t slot = __ldcg(a.meta.slot + row);
  const int32_t position = __ldcg(a.meta.position + row);
  const int32_t sequence = __ldcg(a.meta.sequence + row);
  const float value = __ldcg(a.kv + row * channels + c);
  const float score =
      __ldcg(a.score + row * channels + c) + a.ape[position % a.ratio * channels + c];
  // Tail rows are kept for all blocks of a chunk, since any of them may be where another sequence starts.
  const int64_t tail = c < a.pages.width ? TailOffset(a, slot, position) : -1;
  if (tail >= 0) {
    a.tail.kv[tail + c] = value;
    a.tail.score[tail + c] = score;
  }
  // The newest `ring` tokens of each sequence; older rows of a long chunk would share their place with a newer one.
  const int32_t last =
      __ldcg(a.sequences.start + sequence) + __ldcg(a.sequences.num_rows + sequence) - 1;
  if (position <= last - a.ring) return;
  const int64_t at = (int64_t{slot} * a.ring + position % a.ring) * channels + c;
  a.ring_kv[at] = value;
  a.ring_score[at] = score;
}

}  // namespace

void KvCompressCuda(Stream& stream, const KvCompressArgs& a) {
  if (a.rows == 0) return;
  const int64_t pool = int64_t{a.ratio} * (a.overlap ? 2 : 1);
  const int64_t channels = int64_t{a.pages.width} * (a.overlap ? 2 : 1);
  const size_t shared = static_cast<size_t>(pool) * sizeof(TokenSource) +
                        static_cast<size_t>(a.pages.width) * sizeof(float);
  const cudaStream_t handle = CudaStreamOf(stream);
  LaunchEarly(CompressKernel, {dim3(static_cast<unsigned>(a.rows)), kThreads, shared, 1}, handle,
              a);
  const dim3 grid(static_cast<unsigned>(CeilDiv<int64_t>(channels, kThreads)),
                  static_cast<unsigned>(a.rows));
  LaunchEarly(KeepKernel, {grid, kThreads, 0, 1}, handle, a);
}

}  // namespace firesteel
