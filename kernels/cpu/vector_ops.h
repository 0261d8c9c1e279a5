// Reductions and element-wise loops of the CPU column that are hot enough for SIMD. Each has one order of operations per
// instruction set, whatever the caller's batch.
#pragma once

#include <cstdint>

namespace firesteel {

float Dot(const float* a, const float* b, int64_t count);
float SumOfSquares(const float* x, int64_t count);

// y[i] = x[i] * scale * weight[i]; weight may be null (all ones). x may equal y.
void ScaleRow(const float* x, float scale, const float* weight, int64_t count, float* y);

// y[i] += a * x[i]
void AddScaled(float a, const float* x, int64_t count, float* y);

// Channel-wise softmax pooling: out[c] = sum_t softmax_t(score[t][c]) * value[t][c] over `count` rows. A null score row
// stands for -infinity everywhere and is skipped. REQUIRES: at least one non-null row.
void SoftmaxPool(const float* const* value, const float* const* score, int64_t count,
                 int64_t channels, float* out);

// In place: x[i] = exp(x[i] - shift); returns the sum.
float ExpShifted(float* x, int64_t count, float shift);

}  // namespace firesteel
