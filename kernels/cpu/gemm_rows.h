// The inner product kernel of the CPU column: a few rows of x against a range of weight rows.
#pragma once

#include <cstdint>

#include "kernels/core/parallel_for.h"
#include "kernels/ops/linear/linear.h"

namespace firesteel {

// y[r][o] = sum_k x[r][k] * W[o][k] for r in [0, rows) and o in [o_begin, o_end).
//
// fp32 accumulation in one order per (r, o) that depends on neither `rows` nor the range, so any split of a matrix
// product into calls gives the same bits. REQUIRES: in % 32 == 0 for the fp8 and fp4 formats, fp8 block % 32 == 0.
void GemmRows(const Weight& weight, const float* const* x, float* const* y, int64_t rows,
              int64_t o_begin, int64_t o_end, WorkerScratch& scratch);

// Rows that are widened to fp32, or narrowed from it, at a time: a worker's scratch holds so many of the widest matrix,
// and decoding a weight tile is a small part of so many products.
inline constexpr int64_t kStagedRows = 48;

// Outputs a worker should take at least, so that dispatch does not cost more than the arithmetic.
int64_t GemmGrain(const Weight& weight, int64_t rows);

}  // namespace firesteel
