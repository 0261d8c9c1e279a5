// Host side of the Hopper sparse decode attention.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ops/sparse_attention/sparse_attention.h"

namespace firesteel::sm90 {

// True when the kernel serves these arguments: pools in fp8 (584-byte record) or bf16, head_dim 512, bf16 rows, an index row
// for each query row, heads a multiple of 8.
bool DecodeAttentionServes(const SparseAttentionArgs& args);

// Heads that a cluster serves. Any of 8, 16, 32 and 64 that divides `heads` gives the same bits; this one is the fastest
// for the number of rows.
int32_t SelectDecodeHeads(int32_t rows, int32_t heads, int32_t sm_count);

// REQUIRES: DecodeAttentionServes; tile_heads as selected, or 8, 16, 32 or 64 if it divides args.heads.
cudaError_t LaunchDecodeAttention(cudaStream_t stream, const SparseAttentionArgs& args,
                                  int32_t tile_heads);

}  // namespace firesteel::sm90
