#include "kernels/cuda/product_peak.h"

#include <memory>

#include "kernels/cuda/mma.cuh"

namespace firesteel {
namespace {

constexpr int kThreads = 512;
constexpr int kChains = 8;  // independent products of a warp: hides their latency

__global__ void __launch_bounds__(kThreads) ProductRounds(int rounds, float* sink) {
  float acc[kChains][4] = {};
  uint32_t a[4];
  uint32_t b[2];
  // Values between one and two: zeros would take less power, and with it less time, than a model's.
  for (int i = 0; i < 4; ++i) a[i] = 0x3f803f80U | (threadIdx.x * 2654435761U >> i & 0x007f007fU);
  for (int i = 0; i < 2; ++i) b[i] = 0x3f80bf80U | (threadIdx.x * 2246822519U >> i & 0x007f007fU);
#pragma unroll 1
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int c = 0; c < kChains; ++c) MmaBf16(acc[c], a, b[0], b[1]);
  }
  float sum = 0.0F;
  for (int c = 0; c < kChains; ++c) sum += acc[c][0] + acc[c][1] + acc[c][2] + acc[c][3];
  if (sum == 0x1.fffffep127F) *sink = sum;
}

struct EventDeleter {
  void operator()(CUevent_st* event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<CUevent_st, EventDeleter>;

Result<Event> MakeEvent() {
  cudaEvent_t event = nullptr;
  FIRESTEEL_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&event), "creating an event"));
  return Event(event);
}

}  // namespace

double EnqueueProducts(cudaStream_t stream, int multiprocessors, int rounds, float* sink) {
  ProductRounds<<<static_cast<unsigned>(multiprocessors), kThreads, 0, stream>>>(rounds, sink);
  constexpr double kFlop = 2.0 * 16 * 8 * 16;
  return kFlop * kChains * (kThreads / 32) * rounds * multiprocessors;
}

Result<double> MeasureProductPeak(CudaStream& stream) {
  constexpr int kRounds = 1 << 12;
  constexpr int kSamples = 5;  // the first warms up
  const auto enqueue = stream.hopper() ? sm90::EnqueueProducts : EnqueueProducts;
  FIRESTEEL_ASSIGN_OR_RETURN(const Event begin, MakeEvent());
  FIRESTEEL_ASSIGN_OR_RETURN(const Event end, MakeEvent());
  double best = 0.0;
  for (int i = 0; i < kSamples; ++i) {
    cudaEventRecord(begin.get(), stream.handle());
    const double flop = enqueue(stream.handle(), stream.multiprocessors(), kRounds, nullptr);
    cudaEventRecord(end.get(), stream.handle());
    FIRESTEEL_RETURN_IF_ERROR(stream.Synchronize());
    float ms = 0.0F;
    FIRESTEEL_RETURN_IF_ERROR(
        CudaStatus(cudaEventElapsedTime(&ms, begin.get(), end.get()), "timing products"));
    if (i > 0 && ms > 0.0F && flop / ms * 1e-6 > best) best = flop / ms * 1e-6;
  }
  return best;
}

}  // namespace firesteel
