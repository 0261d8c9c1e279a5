// Mixture of experts: routing, grouping by expert, expert GEMMs and the weighted sum.
//
// A *pair* is one (row, choice); pairs are grouped by expert, in row order inside an expert, so that each expert reads
// its weights once. The final sum runs over a row's choices in routing order and adds the shared expert last, whatever
// the batch looks like.
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"
#include "kernels/ops/linear/linear.h"

namespace firesteel {

class Stream;

// Scores are sqrt(softplus(logit)). Learned routing picks the top_k of score + bias (ties to the lower expert); hash
// routing reads the choice from a token table. weight = score / (sum of chosen scores + 1e-20) * scaling.
struct MoeRouteArgs {
  const float* logits;         // [rows, experts] gate output
  const float* bias;           // [experts]; null with hash routing
  const int64_t* token_table;  // [vocab, top_k]; null with learned routing
  const int32_t* token;        // [rows]
  int32_t* expert;             // [rows, top_k] out
  float* weight;               // [rows, top_k] out
  LiveCount live;
  int32_t rows;
  int32_t experts;
  int32_t top_k;
  float scaling;
};

struct MoeGroups {
  int32_t* offset;       // [experts + 1] first pair of each expert
  int32_t* pair_row;     // [rows * top_k] row of each grouped pair
  int32_t* pair_choice;  // [rows * top_k] row * top_k + choice of each grouped pair
  int32_t* pair_of;      // [rows, top_k] where each choice was placed
};

struct MoeGroupArgs {
  const int32_t* expert;  // [rows, top_k]
  MoeGroups groups;
  LiveCount live;
  int32_t rows;
  int32_t experts;
  int32_t top_k;
};

// The same matrix of every expert of a layer.
struct ExpertWeights {
  const Weight* table = nullptr;  // [experts] device memory
  Weight first;                   // host copy of table[0]: the format, shape and alignment of all
};

// y[pair] = x[pair_row or pair] W_expert^T
struct GroupedLinearArgs {
  ConstRows x;
  Rows y;  // [pairs, out]
  ExpertWeights weights;
  const int32_t* offset;    // [experts + 1]
  const int32_t* pair_row;  // [pairs] source rows of x; null: x is in pair order already
  int32_t experts;
  int32_t max_pairs;
};

// h = silu(min(gate, limit)) * clamp(up, -limit, limit) * weight
struct SwigluArgs {
  ConstRows gate;              // [rows, cols]
  ConstRows up;                // [rows, cols]
  Rows out;                    // [rows, cols]; may alias gate
  const float* weight;         // routing weights, indexed by pair_choice; null: 1
  const int32_t* pair_choice;  // null with a null weight
  const int32_t* live;         // [1] live row count times `live_factor`
  int32_t live_factor;
  int32_t rows;
  int32_t cols;
  float limit;
};

struct MoeCombineArgs {
  ConstRows pairs;         // [rows * top_k, hidden] in grouped order
  ConstRows shared;        // [rows, hidden]
  const int32_t* pair_of;  // [rows, top_k]
  Rows out;                // [rows, hidden]
  LiveCount live;
  int32_t rows;
  int32_t hidden;
  int32_t top_k;
};

void MoeRouteCpu(Stream& stream, const MoeRouteArgs& args);
void MoeRouteCuda(Stream& stream, const MoeRouteArgs& args);
void MoeGroupCpu(Stream& stream, const MoeGroupArgs& args);
void MoeGroupCuda(Stream& stream, const MoeGroupArgs& args);
void GroupedLinearCpu(Stream& stream, const GroupedLinearArgs& args);
void GroupedLinearCuda(Stream& stream, const GroupedLinearArgs& args);
void SwigluCpu(Stream& stream, const SwigluArgs& args);
void SwigluCuda(Stream& stream, const SwigluArgs& args);
void MoeCombineCpu(Stream& stream, const MoeCombineArgs& args);
void MoeCombineCuda(Stream& stream, const MoeCombineArgs& args);

}  // namespace firesteel
