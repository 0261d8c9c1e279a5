#include "kernels/core/math.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/ops/gather/gather.h"

namespace firesteel {
namespace {

constexpr int32_t kThreads = 256;

// A block per row. T has the size of an element; its bits are copied, whatever they mean.
template <typename T>
__global__ void __launch_bounds__(kThreads) GatherRow(GatherArgs a) {
  const int64_t row = blockIdx.x;
  if (row >= Min(*a.live, a.rows)) return;
  const T* source = static_cast<const T*>(a.x.data) + int64_t{a.index[row]} * a.x.stride;
  T* out = static_cast<T*>(a.out.data) + row * a.out.stride;
  for (int32_t c = static_cast<int32_t>(threadIdx.x); c < a.cols; c += kThreads) out[c] = source[c];
}

}  // namespace

void GatherCuda(Stream& stream, const GatherArgs& a) {
  if (a.rows == 0) return;
  const uint32_t blocks = static_cast<uint32_t>(a.rows);
  const cudaStream_t handle = CudaStreamOf(stream);
  switch (DTypeBytes(a.x.dtype)) {
    case 1: return GatherRow<uint8_t><<<blocks, kThreads, 0, handle>>>(a);
    case 2: return GatherRow<uint16_t><<<blocks, kThreads, 0, handle>>>(a);
    case 4: return GatherRow<uint32_t><<<blocks, kThreads, 0, handle>>>(a);
    default: return GatherRow<uint64_t><<<blocks, kThreads, 0, handle>>>(a);
  }
}

}  // namespace firesteel
