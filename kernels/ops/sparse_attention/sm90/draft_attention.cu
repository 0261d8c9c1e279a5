#include "kernels/ops/sparse_attention/sm90/draft_attention.h"

#include "kernels/ops/sparse_attention/sm90/draft_attention.cuh"

namespace firesteel::sm90 {
namespace {

template <int N, KvFormat kFormat>
cudaError_t LaunchTile(cudaStream_t stream, const DraftAttentionParams& params, dim3 grid) {
  const int shared = DraftShared<N>::Total(params.tiles_per_cta > 1 ? 2 : 1);
  auto* kernel = DraftAttention<N, kFormat>;
  const cudaError_t set =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (set != cudaSuccess) return set;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(kDraftThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared);
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
  (void)sm_count; (void)rows_per_list; (void)lists;
  const int32_t group = heads % 16 == 0 ? 16 : 8;
  return {1, group, 1};
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
  p.tiles = args.heads / tile.heads * (args.rows_per_list / tile.rows);
  p.tiles_per_cta = tile.per_cta;
  const dim3 grid(static_cast<unsigned>((p.tiles + tile.per_cta - 1) / tile.per_cta),
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
