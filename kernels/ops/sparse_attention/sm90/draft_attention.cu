#include "kernels/ops/sparse_attention/sm90/draft_attention.h"

#include "kernels/core/math.h"
#include "kernels/ops/sparse_attention/sm90/draft_attention.cuh"

namespace firesteel::sm90 {
namespace {

template <int N, int kTileHeads, KvFormat kFormat>
cudaError_t LaunchTile(cudaStream_t stream, const DraftAttentionParams& params, dim3 grid) {
  const int shared = DraftShared<N>::Total(params.tiles_per_cta > 1 ? 2 : 1);
  return LaunchEarly(DraftAttention<N, kTileHeads, kFormat>,
                     {grid, kDraftThreads, static_cast<size_t>(shared), 1}, stream, params);
}

template <int N, int kTileHeads>
cudaError_t LaunchFormat(cudaStream_t stream, const DraftAttentionParams& params, dim3 grid,
                         KvFormat format) {
  if (format == KvFormat::kFp8)
    return LaunchTile<N, kTileHeads, KvFormat::kFp8>(stream, params, grid);
  return LaunchTile<N, kTileHeads, KvFormat::kBf16>(stream, params, grid);
}

}  // namespace

bool DraftAttentionServes(const SparseAttentionArgs& args) {
  const bool format = args.window.format == KvFormat::kBf16 ||
                      (args.window.format == KvFormat::kFp8 && args.window.rope == 64);
  const int32_t max_valid = args.window_rows.max_valid;
  const auto dense = [&](const ConstRows& rows) {
    return rows.dtype == DType::kBf16 && rows.stride == int64_t{args.heads} * kHeadDim &&
           reinterpret_cast<uintptr_t>(rows.data) % 16 == 0;
  };
  return format && args.extra_rows.valid == nullptr && args.head_dim == kHeadDim &&
         args.heads % 8 == 0 && max_valid > 0 && max_valid <= kDraftKeys && dense(args.q) &&
         dense(args.out);
}

DraftTile SelectDraftTile(int32_t lists, int32_t rows_per_list, int32_t heads, int32_t sm_count) {
  constexpr int32_t kHeads = 8;
  const int32_t row_tiles = lists * rows_per_list * (heads / kHeads);
  // One block row per CTA while the card has room for all of them: the shortest latency.
  if (row_tiles <= sm_count) return {1, kHeads, 1};
  // Other blocks have no tile of whole blocks; all heads of a row share its decoded keys.
  if (rows_per_list != 5) {
    const int32_t tile_heads = heads % 16 == 0 ? 16 : kHeads;
    return {1, tile_heads, heads / tile_heads};
  }
  // Else whole blocks, and as many tiles per decoded key list as keep the grid to one wave.
  const int32_t block_tiles = lists * (heads / kHeads);
  int32_t per_cta = 1;
  while (per_cta < heads / kHeads && CeilDiv(block_tiles, per_cta) > sm_count) per_cta *= 2;
  return {5, kHeads, Min(per_cta, heads / kHeads)};
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
  p.tile_rows = tile.rows;
  p.scale = args.scale;
  p.tiles = args.heads / tile.heads * (args.rows_per_list / tile.rows);
  p.tiles_per_cta = tile.per_cta;
  const dim3 grid(static_cast<unsigned>((p.tiles + tile.per_cta - 1) / tile.per_cta),
                  static_cast<unsigned>(CeilDiv(args.rows, args.rows_per_list)));
  if (tile.heads != 8 && tile.heads != 16) return cudaErrorInvalidValue;
  switch (tile.rows * tile.heads) {
    case 8: return LaunchFormat<8, 8>(stream, p, grid, args.window.format);
    case 16: return LaunchFormat<16, 16>(stream, p, grid, args.window.format);
    case 40: return LaunchFormat<40, 8>(stream, p, grid, args.window.format);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace firesteel::sm90
