#include "kernels/ops/moe/moe.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/gemm_rows.h"
#include "kernels/cpu/row_access.h"
#include "kernels/cpu/vector_ops.h"

namespace firesteel {
namespace {

// sqrt(log(1 + e^x)) without overflow for large x.
float SqrtSoftplus(float x) { return std::sqrt(x > 20.0F ? x : std::log1p(std::exp(x))); }

void ChooseTopK(const float* score, const float* bias, int32_t experts, int32_t top_k,
                int32_t* chosen) {
  for (int32_t k = 0; k < top_k; ++k) {
    int32_t best = -1;
    for (int32_t e = 0; e < experts; ++e) {
      if (std::find(chosen, chosen + k, e) != chosen + k) continue;
      // The comparison is false for NaN, so a broken row still gets distinct experts.
      if (best < 0 || score[e] + bias[e] > score[best] + bias[best]) best = e;
    }
    chosen[k] = best;
  }
}

}  // namespace

void MoeRouteCpu(Stream& stream, const MoeRouteArgs& a) {
  PoolOf(stream).Run(Min(*a.live, a.rows), 32, [&](int64_t begin, int64_t end, WorkerScratch& s) {
    float* score = s.Floats(a.experts);
    for (int64_t row = begin; row < end; ++row) {
      for (int32_t e = 0; e < a.experts; ++e) {
        score[e] = SqrtSoftplus(a.logits[row * a.experts + e]);
      }
      int32_t* chosen = a.expert + row * a.top_k;
      if (a.token_table != nullptr) {
        for (int32_t k = 0; k < a.top_k; ++k) {
          chosen[k] = static_cast<int32_t>(a.token_table[int64_t{a.token[row]} * a.top_k + k]);
        }
      } else {
        ChooseTopK(score, a.bias, a.experts, a.top_k, chosen);
      }
      float sum = 1e-20F;
      for (int32_t k = 0; k < a.top_k; ++k) sum += score[chosen[k]];
      for (int32_t k = 0; k < a.top_k; ++k) {
        a.weight[row * a.top_k + k] = score[chosen[k]] / sum * a.scaling;
      }
    }
  });
}

void MoeGroupCpu(Stream&, const MoeGroupArgs& a) {
  const int32_t pairs = Min(*a.live, a.rows) * a.top_k;
  std::fill(a.groups.offset, a.groups.offset + a.experts + 1, 0);
  for (int32_t p = 0; p < pairs; ++p) ++a.groups.offset[a.expert[p] + 1];
  for (int32_t e = 0; e < a.experts; ++e) a.groups.offset[e + 1] += a.groups.offset[e];
  // Placing a pair advances its expert's offset; afterwards every offset has moved to its successor's place.
  for (int32_t p = 0; p < pairs; ++p) {
    const int32_t place = a.groups.offset[a.expert[p]]++;
    a.groups.pair_row[place] = p / a.top_k;
    a.groups.pair_choice[place] = p;
    a.groups.pair_of[p] = place;
  }
  for (int32_t e = a.experts; e > 0; --e) a.groups.offset[e] = a.groups.offset[e - 1];
  a.groups.offset[0] = 0;
}

void GroupedLinearCpu(Stream& stream, const GroupedLinearArgs& a) {
  const int64_t out = a.weights.first.out;
  const int64_t in = a.weights.first.in;
  int64_t active = 0;
  int32_t most = 0;
  for (int32_t e = 0; e < a.experts; ++e) {
    const int32_t count = a.offset[e + 1] - a.offset[e];
    active += count > 0 ? 1 : 0;
    most = Max(most, count);
  }
  if (active == 0) return;
  PoolOf(stream).Run(
      active * out, GemmGrain(a.weights.first, most),
      [&](int64_t begin, int64_t end, WorkerScratch& s) {
        const bool widen_x = a.x.dtype != DType::kF32;
        const bool narrow_y = a.y.dtype != DType::kF32;
        const int64_t staged = widen_x || narrow_y ? Min<int64_t>(most, kStagedRows) : most;
        const auto** x = reinterpret_cast<const float**>(s.Bytes(staged * 8));
        auto** y = reinterpret_cast<float**>(s.Bytes(staged * 8));
        float* x_buffer = widen_x ? s.Floats(staged * in) : nullptr;
        float* y_buffer = narrow_y ? s.Floats(staged * out) : nullptr;
        int64_t first_output = 0;  // of the current active expert, in the flattened range
        for (int32_t e = 0; e < a.experts; ++e) {
          const int64_t pairs_end = a.offset[e + 1];
          if (a.offset[e] == pairs_end) continue;
          const int64_t lo = Max(begin, first_output) - first_output;
          const int64_t hi = Min(end, first_output + out) - first_output;
          first_output += out;
          if (lo >= hi) continue;
          for (int64_t first = a.offset[e]; first < pairs_end; first += staged) {
            const int64_t count = Min(staged, pairs_end - first);
            for (int64_t i = 0; i < count; ++i) {
              const int64_t pair = first + i;
              const int64_t source = a.pair_row == nullptr ? pair : a.pair_row[pair];
              x[i] = ReadRow(a.x, source, in, widen_x ? x_buffer + i * in : nullptr);
              y[i] = WritableRow(a.y, pair, narrow_y ? y_buffer + i * out : nullptr);
            }
            GemmRows(a.weights.table[e], x, y, count, lo, hi, s);
            for (int64_t i = 0; narrow_y && i < count; ++i) {
              auto* stored = static_cast<uint16_t*>(a.y.data) + (first + i) * a.y.stride;
              for (int64_t c = lo; c < hi; ++c) stored[c] = FloatToBf16(y[i][c]);
            }
          }
        }
      });
}

void SwigluCpu(Stream& stream, const SwigluArgs& a) {
  const int64_t rows = Min(*a.live * a.live_factor, a.rows);
  PoolOf(stream).Run(rows, 8, [&](int64_t begin, int64_t end, WorkerScratch& s) {
    float* gate_buffer = s.Floats(a.cols);
    float* up_buffer = s.Floats(a.cols);
    float* out_buffer = s.Floats(a.cols);
    for (int64_t row = begin; row < end; ++row) {
      const float* gate = ReadRow(a.gate, row, a.cols, gate_buffer);
      const float* up = ReadRow(a.up, row, a.cols, up_buffer);
      float* out = WritableRow(a.out, row, out_buffer);
      const float weight = a.weight == nullptr ? 1.0F : a.weight[a.pair_choice[row]];
      for (int32_t c = 0; c < a.cols; ++c) {
        const float g = Min(gate[c], a.limit);
        const float u = Max(-a.limit, Min(up[c], a.limit));
        out[c] = g / (1.0F + std::exp(-g)) * u * weight;
      }
      FinishRow(a.out, row, a.cols, out);
    }
  });
}

void MoeCombineCpu(Stream& stream, const MoeCombineArgs& a) {
  PoolOf(stream).Run(Min(*a.live, a.rows), 16, [&](int64_t begin, int64_t end, WorkerScratch& s) {
    float* in = s.Floats(a.hidden);
    float* sum = s.Floats(a.hidden);
    for (int64_t row = begin; row < end; ++row) {
      std::fill(sum, sum + a.hidden, 0.0F);
      for (int32_t k = 0; k < a.top_k; ++k) {
        AddScaled(1.0F, ReadRow(a.pairs, a.pair_of[row * a.top_k + k], a.hidden, in), a.hidden,
                  sum);
      }
      AddScaled(1.0F, ReadRow(a.shared, row, a.hidden, in), a.hidden, sum);
      float* out = WritableRow(a.out, row, in);
      std::copy(sum, sum + a.hidden, out);
      FinishRow(a.out, row, a.hidden, out);
    }
  });
}

}  // namespace firesteel
