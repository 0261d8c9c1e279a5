#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/row_access.cuh"
#include "kernels/ops/embed/embed.h"

namespace firesteel {
namespace {

constexpr int32_t kThreads = 256;

// A block per row.
__global__ void __launch_bounds__(kThreads) EmbedRow(EmbedArgs a) {
  const int64_t row = blockIdx.x;
  if (row >= Min(*a.live, a.rows)) return;
  const uint16_t* source = a.table + int64_t{a.token[row]} * a.hidden;
  for (int32_t c = static_cast<int32_t>(threadIdx.x); c < a.hidden; c += kThreads) {
    const float value = Bf16ToFloat(source[c]);
    for (int32_t i = 0; i < a.streams; ++i) {
      StoreElement(a.out, row, int64_t{i} * a.hidden + c, value);
    }
  }
}

}  // namespace

void EmbedCuda(Stream& stream, const EmbedArgs& a) {
  if (a.rows == 0) return;
  EmbedRow<<<static_cast<uint32_t>(a.rows), kThreads, 0, CudaStreamOf(stream)>>>(a);
}

}  // namespace firesteel
