// Host side of the Hopper draft-block attention.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ops/sparse_attention/sparse_attention.h"

namespace firesteel::sm90 {

// True when the kernel serves these arguments: one pool in fp8 (584-byte record) or bf16, head_dim 512, dense bf16 rows,
// lists known to hold at most 136 keys, heads a multiple of 8. REQUIRES: pages as the 512 wide heads of the generic kernels
// need them (mma_attention::Serves).
bool DraftAttentionServes(const SparseAttentionArgs& args);

// Query rows per CTA. Any choice gives the same bits; these are the fastest measured for the number of lists.
struct DraftTile {
  int32_t rows;  // of the block
  int32_t heads;
  int32_t per_cta;  // tiles that one CTA serves in turn from the same decoded keys
};
DraftTile SelectDraftTile(int32_t lists, int32_t rows_per_list, int32_t heads, int32_t sm_count);

// REQUIRES: DraftAttentionServes. `tile` as selected, or any of {1, 8}, {1, 16} and {5, 8}.
cudaError_t LaunchDraftAttention(cudaStream_t stream, const SparseAttentionArgs& args,
                                 const DraftTile& tile);

}  // namespace firesteel::sm90
