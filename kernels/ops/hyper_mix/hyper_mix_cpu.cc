#include "kernels/ops/hyper_mix/hyper_mix.h"

#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/row_access.h"
#include "kernels/cpu/vector_ops.h"

namespace firesteel {
namespace {

float Sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

float StreamNorm(const float* x, int64_t count, float eps) {
  return 1.0F / std::sqrt(SumOfSquares(x, count) / static_cast<float>(count) + eps);
}

// c[j][k]: softmax over k, then alternating column and row normalisation.
void Sinkhorn(float* c, int32_t n, int32_t iterations, float eps) {
  for (int32_t j = 0; j < n; ++j) {
    float top = c[j * n];
    for (int32_t k = 1; k < n; ++k) top = Max(top, c[j * n + k]);
    float sum = 0.0F;
    for (int32_t k = 0; k < n; ++k) {
      c[j * n + k] = std::exp(c[j * n + k] - top);
      sum += c[j * n + k];
    }
    for (int32_t k = 0; k < n; ++k) c[j * n + k] = c[j * n + k] / sum + eps;
  }
  for (int32_t i = 0; i < iterations; ++i) {
    for (int32_t j = 0; i > 0 && j < n; ++j) {
      float sum = eps;
      for (int32_t k = 0; k < n; ++k) sum += c[j * n + k];
      for (int32_t k = 0; k < n; ++k) c[j * n + k] /= sum;
    }
    for (int32_t k = 0; k < n; ++k) {
      float sum = eps;
      for (int32_t j = 0; j < n; ++j) sum += c[j * n + k];
      for (int32_t j = 0; j < n; ++j) c[j * n + k] /= sum;
    }
  }
}

void CollapseStreams(const float* x, const float* pre, int32_t streams, int32_t hidden,
                     float* out) {
  for (int32_t c = 0; c < hidden; ++c) out[c] = pre[0] * x[c];
  for (int32_t i = 1; i < streams; ++i) AddScaled(pre[i], x + int64_t{i} * hidden, hidden, out);
}

}  // namespace

void HyperCollapseCpu(Stream& stream, const HyperCollapseArgs& a) {
  const int32_t n = a.params.streams;
  const int64_t width = int64_t{n} * a.hidden;
  PoolOf(stream).Run(Min(*a.live, a.rows), 4, [&](int64_t begin, int64_t end, WorkerScratch& s) {
    float* in = s.Floats(width);
    float* weight = s.Floats(a.hidden);
    float* collapsed = s.Floats(a.hidden);
    float* buffer = s.Floats(a.hidden);
    for (int32_t c = 0; c < a.hidden; ++c) weight[c] = Bf16ToFloat(a.weight[c]);
    for (int64_t row = begin; row < end; ++row) {
      const float* x = ReadRow(a.x, row, width, in);
      const float rho = StreamNorm(x, width, a.params.norm_eps);
      const float* m = a.mix + row * (2 + n) * n;
      const float* base = a.params.base;
      float pre[kMaxStreams];
      float* post = a.post + row * n;
      float* comb = a.comb + row * n * n;
      for (int32_t i = 0; i < n; ++i) {
        pre[i] = Sigmoid(m[i] * rho * a.params.scale[0] + base[i]) + a.params.eps;
        post[i] = 2.0F * Sigmoid(m[n + i] * rho * a.params.scale[1] + base[n + i]);
      }
      for (int32_t i = 0; i < n * n; ++i) {
        comb[i] = m[2 * n + i] * rho * a.params.scale[2] + base[2 * n + i];
      }
      Sinkhorn(comb, n, a.params.sinkhorn_iterations, a.params.eps);
      CollapseStreams(x, pre, n, a.hidden, collapsed);
      float* out = WritableRow(a.out, row, buffer);
      ScaleRow(collapsed, StreamNorm(collapsed, a.hidden, a.params.norm_eps), weight, a.hidden,
               out);
      FinishRow(a.out, row, a.hidden, out);
    }
  });
}

void HyperExpandCpu(Stream& stream, const HyperExpandArgs& a) {
  const int32_t n = a.streams;
  const int64_t width = int64_t{n} * a.hidden;
  PoolOf(stream).Run(Min(*a.live, a.rows), 4, [&](int64_t begin, int64_t end, WorkerScratch& s) {
    float* in = s.Floats(width);
    float* f_buffer = s.Floats(a.hidden);
    float* mixed = s.Floats(width);
    for (int64_t row = begin; row < end; ++row) {
      const float* x = ReadRow(a.x, row, width, in);
      const float* f = ReadRow(a.f, row, a.hidden, f_buffer);
      const float* comb = a.comb + row * n * n;
      for (int32_t k = 0; k < n; ++k) {
        float* out = mixed + int64_t{k} * a.hidden;
        ScaleRow(f, a.post[row * n + k], nullptr, a.hidden, out);
        // Note the transpose: the sum runs over the first index of C.
        for (int32_t j = 0; j < n; ++j) {
          AddScaled(comb[j * n + k], x + int64_t{j} * a.hidden, a.hidden, out);
        }
      }
      float* out = WritableRow(a.x, row, in);
      for (int64_t c = 0; c < width; ++c) out[c] = mixed[c];
      FinishRow(a.x, row, width, out);
    }
  });
}

void HyperHeadCpu(Stream& stream, const HyperHeadArgs& a) {
  const int32_t n = a.params.streams;
  const int64_t width = int64_t{n} * a.hidden;
  PoolOf(stream).Run(Min(*a.live, a.rows), 4, [&](int64_t begin, int64_t end, WorkerScratch& s) {
    float* in = s.Floats(width);
    float* buffer = s.Floats(a.hidden);
    for (int64_t row = begin; row < end; ++row) {
      const float* x = ReadRow(a.x, row, width, in);
      const float rho = StreamNorm(x, width, a.params.norm_eps);
      float pre[kMaxStreams];
      for (int32_t i = 0; i < n; ++i) {
        pre[i] =
            Sigmoid(a.mix[row * n + i] * rho * a.params.scale[0] + a.params.base[i]) + a.params.eps;
      }
      float* out = WritableRow(a.out, row, buffer);
      CollapseStreams(x, pre, n, a.hidden, out);
      FinishRow(a.out, row, a.hidden, out);
    }
  });
}

}  // namespace firesteel
