// Manifold-constrained hyper-connections: `streams` residual rows per token, collapsed before a sublayer and expanded
// after it (DeepSeek-V4).
//
// With f the flattened streams, m = hc_fn f (the caller's linear), rho = rsqrt(mean(f^2) + norm_eps):
//   pre_i  = sigmoid(rho m_i scale[0] + base_i) + eps
//   post_i = 2 sigmoid(rho m_{S+i} scale[1] + base_{S+i})
//   C      = Sinkhorn(softmax_rows(rho m_{2S + S j + k} scale[2] + base) + eps): columns once, then (rows, columns)
//            iterations - 1 times, each division with + eps
//   collapse: x = RMSNorm(sum_i pre_i X_i; weight)         expand: X'_k = post_k F + sum_j C[j][k] X_j
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"

namespace firesteel {

class Stream;

inline constexpr int32_t kMaxStreams = 8;

struct HyperParams {
  const float* base;   // [(2 + streams) * streams], or [streams] for the head
  const float* scale;  // [3], or [1] for the head
  int32_t streams;
  int32_t sinkhorn_iterations;
  float eps;
  float norm_eps;
};

struct HyperCollapseArgs {
  ConstRows x;       // [rows, streams * hidden]
  const float* mix;  // [rows, (2 + streams) * streams] = hc_fn f
  HyperParams params;
  const uint16_t* weight;  // [hidden] bf16 norm weight of the sublayer
  Rows out;                // [rows, hidden] normed sublayer input
  float* post;             // [rows, streams]
  float* comb;             // [rows, streams, streams]
  LiveCount live;
  int32_t rows;
  int32_t hidden;
};

struct HyperExpandArgs {
  Rows x;             // [rows, streams * hidden], in place
  ConstRows f;        // [rows, hidden] sublayer output
  const float* post;  // [rows, streams]
  const float* comb;  // [rows, streams, streams]
  LiveCount live;
  int32_t rows;
  int32_t hidden;
  int32_t streams;
};

// Head collapse: pre only, no norm (the caller norms; the confidence head reads the value before it).
struct HyperHeadArgs {
  ConstRows x;       // [rows, streams * hidden]
  const float* mix;  // [rows, streams]
  HyperParams params;
  Rows out;  // [rows, hidden]
  LiveCount live;
  int32_t rows;
  int32_t hidden;
};

void HyperCollapseCpu(Stream& stream, const HyperCollapseArgs& args);
void HyperCollapseCuda(Stream& stream, const HyperCollapseArgs& args);
void HyperExpandCpu(Stream& stream, const HyperExpandArgs& args);
void HyperExpandCuda(Stream& stream, const HyperExpandArgs& args);
void HyperHeadCpu(Stream& stream, const HyperHeadArgs& args);
void HyperHeadCuda(Stream& stream, const HyperHeadArgs& args);

}  // namespace firesteel
