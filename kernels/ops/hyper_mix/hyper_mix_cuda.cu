#include "kernels/core/math.h"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/row_access.cuh"
#include "kernels/ops/hyper_mix/hyper_mix.h"
#include "kernels/ops/hyper_mix/mix_four.cuh"

namespace firesteel {
namespace {

constexpr int kThreads = 256;

__device__ float Sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

// 1 / root mean square of a row's first `count` values.
__device__ float StreamNorm(const ConstRows& x, int64_t row, int64_t count, float eps) {
  float sum = 0.0F;
  for (int64_t c = threadIdx.x; c < count; c += kThreads) {
    const float v = LoadElement(x, row, c);
    sum += v * v;
  }
  return 1.0F / sqrtf(BlockSum<kThreads>(sum) / static_cast<float>(count) + eps);
}

// See the header: softmax over k, then alternating column and row normalisation. One warp; c is in shared memory.
__device__ void Sinkhorn(float* c, int32_t n, int32_t iterations, float eps) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  constexpr int kPerLane = kMaxStreams * kMaxStreams / kWarpSize;
  float value[kPerLane];
  // Every element is replaced by value / (its row's or column's sum), all lanes at once.
  const auto normalise = [&](bool rows, float start, float add) {
    for (int i = 0; i < kPerLane; ++i) {
      const int e = lane + i * kWarpSize;
      if (e >= n * n) continue;
      const int first = rows ? e / n * n : e % n;
      const int step = rows ? 1 : n;
      float sum = start;
      for (int k = 0; k < n; ++k) sum += c[first + k * step];
      value[i] = c[e] / sum + add;
    }
    __syncwarp();
    for (int i = 0; i < kPerLane; ++i) {
      if (lane + i * kWarpSize < n * n) c[lane + i * kWarpSize] = value[i];
    }
    __syncwarp();
  };
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + i * kWarpSize;
    if (e >= n * n) continue;
    const int first = e / n * n;
    float top = c[first];
    for (int k = 1; k < n; ++k) top = Max(top, c[first + k]);
    value[i] = expf(c[e] - top);
  }
  __syncwarp();
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + i * kWarpSize < n * n) c[lane + i * kWarpSize] = value[i];
  }
  __syncwarp();
  normalise(true, 0.0F, eps);
  for (int32_t i = 0; i < iterations; ++i) {
    if (i > 0) normalise(true, eps, 0.0F);
    normalise(false, eps, 0.0F);
  }
}

__device__ float CollapsedValue(const ConstRows& x, int64_t row, const float* pre, int32_t streams,
                                int32_t hidden, int32_t c) {
  float sum = pre[0] * LoadElement(x, row, c);
  for (int32_t i = 1; i < streams; ++i) {
    sum += pre[i] * LoadElement(x, row, int64_t{i} * hidden + c);
  }
  return sum;
}

// One block per row. Dynamic shared memory: [hidden] collapsed values.
__global__ void __launch_bounds__(kThreads) CollapseKernel(HyperCollapseArgs a) {
  extern __shared__ float collapsed[];
  __shared__ float pre[kMaxStreams];
  __shared__ float comb[kMaxStreams * kMaxStreams];
  const int64_t row = blockIdx.x;
  if (row >= Min(*a.live, a.rows)) return;
  const int32_t n = a.params.streams;
  const int thread = static_cast<int>(threadIdx.x);
  const float rho = StreamNorm(a.x, row, int64_t{n} * a.hidden, a.params.norm_eps);
  const float* m = a.mix + row * (2 + n) * n;
  const float* base = a.params.base;
  const float* scale = a.params.scale;
  if (thread < n) {
    pre[thread] = Sigmoid(m[thread] * rho * scale[0] + base[thread]) + a.params.eps;
    a.post[row * n + thread] = 2.0F * Sigmoid(m[n + thread] * rho * scale[1] + base[n + thread]);
  }
  if (thread < n * n) comb[thread] = m[2 * n + thread] * rho * scale[2] + base[2 * n + thread];
  __syncthreads();
  if (thread < kWarpSize) {
    Sinkhorn(comb, n, a.params.sinkhorn_iterations, a.params.eps);
    for (int e = thread; e < n * n; e += kWarpSize) a.comb[row * n * n + e] = comb[e];
  }
  float squares = 0.0F;
  for (int32_t c = thread; c < a.hidden; c += kThreads) {
    const float v = CollapsedValue(a.x, row, pre, n, a.hidden, c);
    collapsed[c] = v;
    squares += v * v;
  }
  const float inverse =
      1.0F / sqrtf(BlockSum<kThreads>(squares) / static_cast<float>(a.hidden) + a.params.norm_eps);
  for (int32_t c = thread; c < a.hidden; c += kThreads) {
    StoreElement(a.out, row, c, collapsed[c] * inverse * Bf16ToFloat(a.weight[c]));
  }
}

// Grid: (column blocks, rows). A thread owns one column of all streams, so the update in place needs no barrier.
__global__ void __launch_bounds__(kThreads) ExpandKernel(HyperExpandArgs a) {
  const int64_t row = blockIdx.y;
  const int32_t c = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (row >= Min(*a.live, a.rows) || c >= a.hidden) return;
  const int32_t n = a.streams;
  const float f = LoadElement(a.f, row, c);
  const float* comb = a.comb + row * n * n;
  float x[kMaxStreams];
  for (int32_t j = 0; j < n; ++j) x[j] = LoadElement(a.x, row, int64_t{j} * a.hidden + c);
  for (int32_t k = 0; k < n; ++k) {
    float sum = f * a.post[row * n + k];
    // Note the transpose: the sum runs over the first index of C.
    for (int32_t j = 0; j < n; ++j) sum += comb[j * n + k] * x[j];
    StoreElement(a.x, row, int64_t{k} * a.hidden + c, sum);
  }
}

// One block per row.
__global__ void __launch_bounds__(kThreads) HeadKernel(HyperHeadArgs a) {
  __shared__ float pre[kMaxStreams];
  const int64_t row = blockIdx.x;
  if (row >= Min(*a.live, a.rows)) return;
  const int32_t n = a.params.streams;
  const int thread = static_cast<int>(threadIdx.x);
  const float rho = StreamNorm(a.x, row, int64_t{n} * a.hidden, a.params.norm_eps);
  if (thread < n) {
    const float m = a.mix[row * n + thread];
    pre[thread] = Sigmoid(m * rho * a.params.scale[0] + a.params.base[thread]) + a.params.eps;
  }
  __syncthreads();
  for (int32_t c = thread; c < a.hidden; c += kThreads) {
    StoreElement(a.out, row, c, CollapsedValue(a.x, row, pre, n, a.hidden, c));
  }
}

bool IsAligned(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// Whether the kernels for four streams take these rows.
bool MixesFour(int32_t streams, int32_t hidden, const ConstRows& x, const ConstRows& other) {
  return streams == mix_four::kStreams && HasQuads(x, hidden) && HasQuads(other, hidden);
}

}  // namespace

void HyperCollapseCuda(Stream& stream, const HyperCollapseArgs& a) {
  const size_t shared = static_cast<size_t>(a.hidden) * sizeof(float);
  const auto rows = static_cast<unsigned>(a.rows);
  const cudaStream_t handle = CudaStreamOf(stream);
  if (!MixesFour(a.params.streams, a.hidden, a.x, a.out) || !IsAligned(a.weight, 8)) {
    CollapseKernel<<<rows, kThreads, shared, handle>>>(a);
    return;
  }
  constexpr int kRowThreads = mix_four::kThreads + kWarpSize;
  if (a.x.dtype == DType::kF32) {
    LaunchEarly(mix_four::CollapseRow<DType::kF32, HyperCollapseArgs>,
                {dim3(rows), kRowThreads, shared, 1}, handle, a);
  } else {
    LaunchEarly(mix_four::CollapseRow<DType::kBf16, HyperCollapseArgs>,
                {dim3(rows), kRowThreads, shared, 1}, handle, a);
  }
}

void HyperExpandCuda(Stream& stream, const HyperExpandArgs& a) {
  const cudaStream_t handle = CudaStreamOf(stream);
  const auto rows = static_cast<unsigned>(a.rows);
  if (!MixesFour(a.streams, a.hidden, a.x, a.f) || !IsAligned(a.post, 16) ||
      !IsAligned(a.comb, 16)) {
    const dim3 grid(static_cast<unsigned>(CeilDiv(a.hidden, kThreads)), rows);
    ExpandKernel<<<grid, kThreads, 0, handle>>>(a);
    return;
  }
  const dim3 grid(static_cast<unsigned>(CeilDiv(a.hidden, 4 * mix_four::kExpandThreads)), rows);
  if (a.x.dtype == DType::kF32) {
    LaunchEarly(mix_four::ExpandRow<DType::kF32>, {grid, mix_four::kExpandThreads, 0, 1}, handle,
                a);
  } else {
    LaunchEarly(mix_four::ExpandRow<DType::kBf16>, {grid, mix_four::kExpandThreads, 0, 1}, handle,
                a);
  }
}

void HyperHeadCuda(Stream& stream, const HyperHeadArgs& a) {
  const auto rows = static_cast<unsigned>(a.rows);
  const cudaStream_t handle = CudaStreamOf(stream);
  if (!MixesFour(a.params.streams, a.hidden, a.x, a.out)) {
    HeadKernel<<<rows, kThreads, 0, handle>>>(a);
  } else if (a.x.dtype == DType::kF32) {
    LaunchEarly(mix_four::CollapseRow<DType::kF32, HyperHeadArgs>,
                {dim3(rows), mix_four::kThreads, 0, 1}, handle, a);
  } else {
    LaunchEarly(mix_four::CollapseRow<DType::kBf16, HyperHeadArgs>,
                {dim3(rows), mix_four::kThreads, 0, 1}, handle, a);
  }
}

}  // namespace firesteel
