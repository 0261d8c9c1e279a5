#include "kernels/ops/sparse_attention/sm90/decode_attention.h"

#include "kernels/core/math.h"
#include "kernels/ops/sparse_attention/sm90/decode_attention.cuh"
#include "kernels/ops/sparse_attention/sm90/decode_wide.cuh"

namespace firesteel::sm90 {
namespace {

template <int N, KvFormat kFormat>
cudaError_t LaunchHeads(cudaStream_t stream, const SparseAttentionArgs& args) {
  constexpr int kShared = DecodeSharedBytes<N>();
  static_assert(kShared <= 227 * 1024, "a block's shared memory on Hopper");
  const dim3 grid(static_cast<unsigned>(kClusterBlocks * (args.heads / N)),
                  static_cast<unsigned>(args.rows));
  return LaunchEarly(DecodeAttention<N, kFormat>, {grid, kDecodeThreads, kShared, 1}, stream, args);
}

template <KvFormat kFormat>
cudaError_t LaunchWide(cudaStream_t stream, const SparseAttentionArgs& args) {
  static_assert(kWideSharedBytes <= 227 * 1024, "a block's shared memory on Hopper");
  const dim3 grid(static_cast<unsigned>(kClusterBlocks * (args.heads / kWideHeads)),
                  static_cast<unsigned>(args.rows));
  return LaunchEarly(WideDecodeAttention<kFormat>, {grid, kDecodeThreads, kWideSharedBytes, 1},
                     stream, args);
}

template <KvFormat kFormat>
cudaError_t LaunchFormat(cudaStream_t stream, const SparseAttentionArgs& args, int32_t tile_heads) {
  switch (tile_heads) {
    case 8: return LaunchHeads<8, kFormat>(stream, args);
    case 16: return LaunchHeads<16, kFormat>(stream, args);
    case 32: return LaunchHeads<32, kFormat>(stream, args);
    case kWideHeads: return LaunchWide<kFormat>(stream, args);
    default: return cudaErrorInvalidValue;
  }
}

bool IsServedPool(const KvPages& pages) {
  return pages.width == kDecodeHeadDim &&
         (pages.format == KvFormat::kBf16 ||
          (pages.format == KvFormat::kFp8 && pages.rope == kSlabCols));
}

bool IsServedMatrix(const void* data, int64_t stride, DType dtype) {
  constexpr int kAlignment = 16;  // rows are read and written in pieces of eight values
  return dtype == DType::kBf16 && stride % (kAlignment / 2) == 0 &&
         reinterpret_cast<uintptr_t>(data) % kAlignment == 0;
}

}  // namespace

bool DecodeAttentionServes(const SparseAttentionArgs& args) {
  const bool pools = IsServedPool(args.window) &&
                     (args.extra_rows.valid == nullptr ||
                      (IsServedPool(args.extra) && args.extra.format == args.window.format));
  return pools && args.head_dim == kDecodeHeadDim && args.heads % 8 == 0 &&
         args.rows_per_list == 1 && IsServedMatrix(args.q.data, args.q.stride, args.q.dtype) &&
         IsServedMatrix(args.out.data, args.out.stride, args.out.dtype);
}

int32_t SelectDecodeHeads(int32_t rows, int32_t heads, int32_t sm_count) {
  // Time of a tile for 8, 16, 32 and 64 heads, relative to each other: the fewer the heads, the more of it is decoding keys.
  constexpr int32_t kHeads[] = {8, 16, 32, 64};
  constexpr int32_t kCost[] = {13, 14, 17, 20};
  int32_t best = kHeads[0];
  int64_t best_cost = INT64_MAX;
  for (int i = 0; i < 4; ++i) {
    if (heads % kHeads[i] != 0) break;
    const int64_t blocks = int64_t{rows} * (heads / kHeads[i]) * kClusterBlocks;
    const int64_t cost = CeilDiv<int64_t>(blocks, sm_count) * kCost[i];
    if (cost < best_cost) {
      best = kHeads[i];
      best_cost = cost;
    }
  }
  return best;
}

cudaError_t LaunchDecodeAttention(cudaStream_t stream, const SparseAttentionArgs& args,
                                  int32_t tile_heads) {
  if (args.window.format == KvFormat::kFp8) {
    return LaunchFormat<KvFormat::kFp8>(stream, args, tile_heads);
  }
  return LaunchFormat<KvFormat::kBf16>(stream, args, tile_heads);
}

}  // namespace firesteel::sm90
