#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/row_access.cuh"
#include "kernels/ops/feature_tap/feature_tap.h"

namespace firesteel {
namespace {

constexpr int32_t kThreads = 256;

// A block per row.
__global__ void __launch_bounds__(kThreads) TapRow(FeatureTapArgs a) {
  const int64_t row = blockIdx.x;
  if (row >= Min(*a.live, a.rows)) return;
  const float inverse = 1.0F / static_cast<float>(a.streams);
  for (int32_t c = static_cast<int32_t>(threadIdx.x); c < a.hidden; c += kThreads) {
    float sum = 0.0F;
    for (int32_t i = 0; i < a.streams; ++i) sum += LoadElement(a.x, row, int64_t{i} * a.hidden + c);
    StoreElement(a.out, row, c, sum * inverse);
  }
}

}  // namespace

void FeatureTapCuda(Stream& stream, const FeatureTapArgs& a) {
  if (a.rows == 0) return;
  TapRow<<<static_cast<uint32_t>(a.rows), kThreads, 0, CudaStreamOf(stream)>>>(a);
}

}  // namespace firesteel
