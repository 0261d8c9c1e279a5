#include "kernels/cuda/product_peak.h"
#include "kernels/cuda/sm90/wgmma_wide.cuh"

namespace firesteel::sm90 {
namespace {

constexpr int kThreads = 256;       // two warpgroups, so that one computes while the other begins
constexpr int kSteps = 4;           // products of 16 columns of K
constexpr int kRows = kSteps * 16;  // of the operand in shared memory
constexpr int kSlabBytes = kRows * kSlabRowBytes;
constexpr int kBatch = 8;  // rounds that are waited for together

__global__ void __launch_bounds__(kThreads, 1) ProductRounds(int rounds, float* sink) {
  __shared__ __align__(1024) uint32_t operand[2 * kSlabBytes / 4];
  // Values between one and two: zeros would take less power, and with it less time, than a model's.
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kSlabBytes / 4; i += kThreads) {
    operand[i] = 0x3f80bf80U | (static_cast<uint32_t>(i) * 2654435761U & 0x007f007fU);
  }
  FenceSharedForWgmma();
  __syncthreads();
  uint32_t a[4];
  for (int i = 0; i < 4; ++i) a[i] = 0x3f803f80U | (threadIdx.x * 2246822519U >> i & 0x007f007fU);
  const uint64_t b = SlabRowDescriptor(SharedAddress(operand), kSlabBytes);
  float d[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) d[i] = 0.0F;
#pragma unroll 1
  for (int r = 0; r < rounds; ++r) {
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < kBatch * kSteps; ++i) {
      WgmmaWide(d, a, b + i % kSteps * 16 * kSlabRowBytes / 16);
    }
    WgmmaCommit();
    WgmmaWait<0>();
  }
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < 64; ++i) sum += d[i];
  if (sum == 0x1.fffffep127F) *sink = sum;
}

}  // namespace

double EnqueueProducts(cudaStream_t stream, int multiprocessors, int rounds, float* sink) {
  ProductRounds<<<static_cast<unsigned>(multiprocessors), kThreads, 0, stream>>>(rounds, sink);
  constexpr double kFlop = 2.0 * 64 * 128 * 16;
  return kFlop * kBatch * kSteps * (kThreads / 128) * rounds * multiprocessors;
}

}  // namespace firesteel::sm90
