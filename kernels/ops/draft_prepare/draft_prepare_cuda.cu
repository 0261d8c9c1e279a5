#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/ops/draft_prepare/draft_prepare.h"
#include "kernels/ops/visibility.h"

namespace firesteel {
namespace {

constexpr int32_t kThreads = 128;

__device__ int32_t WindowRow(const DraftPrepareArgs& a, int32_t slot, int32_t position) {
  const int32_t tokens = a.slots.block_tokens[a.window_group];
  const int32_t* table =
      a.slots.block_table[a.window_group] + int64_t{slot} * a.slots.max_blocks[a.window_group];
  return table[position / tokens] * tokens + position % tokens;
}

// By all threads of a block: draft block `at` for a slot.
__device__ void FillBlock(const DraftPrepareArgs& a, int32_t at, int32_t slot) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t anchor = a.slots.length[slot];
  const int32_t token = a.slots.last_token[slot];
  const KeyRange keys = SharedBlockWindow(anchor, a.block, a.window_tokens);
  int32_t* index = a.draft.keys.index + int64_t{at} * a.draft.keys.width;
  for (int32_t p = keys.begin + thread; p < keys.end; p += kThreads) {
    index[p - keys.begin] = WindowRow(a, slot, p);
  }
  for (int32_t k = thread; k < a.block; k += kThreads) {
    const int64_t row = int64_t{at} * a.block + k;
    a.draft.token[row] = k == 0 ? token : a.noise_token;
    a.draft.position[row] = anchor + k;
    a.draft.window_row[row] = WindowRow(a, slot, anchor + k);
  }
  if (thread != 0) return;
  a.draft.slot[at] = slot;
  a.draft.chain[int64_t{at} * (a.block + 1)] = token;
  a.draft.keys.valid[at] = keys.size();
}

__device__ void PadBlock(const DraftPrepareArgs& a, int32_t at) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t k = thread; k < a.block; k += kThreads) {
    const int64_t row = int64_t{at} * a.block + k;
    a.draft.token[row] = a.noise_token;
    a.draft.position[row] = 0;
    a.draft.window_row[row] = -1;
  }
  if (thread != 0) return;
  a.draft.slot[at] = -1;
  a.draft.keys.valid[at] = 0;
}

// By all threads of a block. Packing needs no order of blocks: each counts the proposing sequences before its own.
__device__ void PackSequence(const DraftPrepareArgs& a, int32_t sequence) {
  int32_t before = 0;
  int32_t all = 0;
  for (int32_t s = static_cast<int32_t>(threadIdx.x); s < a.padded_sequences; s += kThreads) {
    const int32_t proposes = a.sequences.propose[s] != 0 ? 1 : 0;
    all += proposes;
    if (s < sequence) before += proposes;
  }
  before = BlockReduce<kThreads>(before, 0, AddOp{});
  all = BlockReduce<kThreads>(all, 0, AddOp{});
  if (a.sequences.propose[sequence] != 0) FillBlock(a, before, a.sequences.slot[sequence]);
  if (sequence >= all) PadBlock(a, sequence);
  if (sequence == 0 && threadIdx.x == 0) {
    a.live->draft_sequences = all;
    a.live->draft_rows = all * a.block;
  }
}

// A block per padded sequence, then a thread per padded row.
__global__ void __launch_bounds__(kThreads) PrepareDraft(DraftPrepareArgs a) {
  const int32_t block = static_cast<int32_t>(blockIdx.x);
  if (block < a.padded_sequences) return PackSequence(a, block);
  const int32_t row = (block - a.padded_sequences) * kThreads + static_cast<int32_t>(threadIdx.x);
  if (row >= a.padded_rows) return;
  const int32_t slot = a.rows.slot[row];
  const bool committed = slot >= 0 && a.rows.position[row] < a.slots.length[slot];
  a.draft.commit_row[row] = committed ? a.rows.window_row[row] : -1;
}

}  // namespace

void DraftPrepareCuda(Stream& stream, const DraftPrepareArgs& a) {
  const int32_t blocks = a.padded_sequences + CeilDiv(a.padded_rows, kThreads);
  PrepareDraft<<<static_cast<uint32_t>(blocks), kThreads, 0, CudaStreamOf(stream)>>>(a);
}

}  // namespace firesteel
