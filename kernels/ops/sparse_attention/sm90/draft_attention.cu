#include "kernels/ops/sparse_attention/sm90/draft_attention.h"

#include "kernels/ops/sparse_attention/sm90/draft_attention.cuh"

namespace firesteel::sm90 {
namespace {

template <int N, KvFormat kFormat>
cudaError_t LaunchTile(cudaStream_t stream, const DraftAttentionParams& params, dim3 grid) {
  constexpr int kShared = DraftShared<N>::kTotal;
  auto* kernel = DraftAttention<N, kFormat>;
  const cudaError_t set =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (set != cudaSuccess) return set;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(kDraftThreads);
  config.dynamicSmemBytes = kShared;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, params);
}

template <int N>
cudaError_t LaunchFormat(cudaStream_t stream, const DraftAttentionParams& params, dim3 grid,
                         KvFormat format) {
  if (format == KvFormat::kFp8) return LaunchTile<N, KvFormat::kFp8>(stream, params, grid);
  return LaunchTile<N, KvFormat::kBf16>(stream, params, grid);
}

}  // namespace

bool DraftAttentionServes(const SparseAttentionArgs& args, int32_t max_valid) {
  const bool format = args.window.format == KvFormat::kBf16 ||
                      (args.window.format == KvFormat::kFp8 && args.window.rope == 64);
  return format && args.extra_rows.valid == nullptr && args.head_dim == kHeadDim &&
         args.heads % 8 == 0 && max_valid <= kDraftKeys && args.q.dtype == DType::kBf16 &&
         args.out.dtype == DType::kBf16;
}

DraftTile SelectDraftTile(int32_t lists, int32_t rows_per_list, int32_t heads, int32_t sm_count) {
  const int32_t group = heads % 16 == 0 ? 16 : 8;
  // One block row per CTA while the card has room for all of them: the shortest latency.
  if (lists * rows_per_list * (heads / group) <= sm_count) return {1, group};
  if (rows_per_list == 5) return {5, group};
  return {1, group};
}

cudaError_t LaunchDraftAttention(cudaStream_t stream, const SparseAttentionArgs& args,
                                 const DraftTile& tile) {
  DraftAttentionParams p{};
  p.q = static_cast<const __nv_bfloat16*>(args.q.data);
  p.out = static_cast<__nv_bfloat16*>(args.out.data);
  p.pages = args.window.data;
  p.index = args.window_rows.index;
  p.valid = args.window_rows.valid;
  p.sink = args.sink;
  p.live_rows = args.live;
  p.page_bytes = args.window.page_bytes;
  p.block_entries = args.window.block_entries;
  p.width = args.window_rows.width;
  p.rows_per_list = args.rows_per_list;
  p.heads = args.heads;
  p.tile_heads = tile.heads;
  p.tile_rows = tile.rows;
  p.scale = args.scale;
  const dim3 grid(static_cast<unsigned>(args.heads / tile.heads * (args.rows_per_list / tile.rows)),
                  static_cast<unsigned>(args.rows / args.rows_per_list));
  switch (tile.rows * tile.heads) {
    case 8: return LaunchFormat<8>(stream, p, grid, args.window.format);
    case 16: return LaunchFormat<16>(stream, p, grid, args.window.format);
    case 40: return LaunchFormat<40>(stream, p, grid, args.window.format);
    case 80: return LaunchFormat<80>(stream, p, grid, args.window.format);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace firesteel::sm90
