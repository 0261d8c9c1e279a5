// Workspace and metadata of one pass through DeepSeek blocks. The target and the drafter each have a lane of their own,
// because their lifetimes overlap inside a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/models/deepseek/deepseek_config.h"
#include "kernels/core/arena.h"
#include "kernels/core/tensor.h"
#include "kernels/ops/moe/moe.h"
#include "kernels/ops/rope/rope.h"
#include "kernels/ops/step_meta.h"

namespace firesteel {

// Which rows a pass works on. Filled per step from persistent buffers, so its pointers never change for one shape.
struct LaneRows {
  int32_t rows = 0;  // padded
  LiveCount live = nullptr;
  const int32_t* token = nullptr;
  const int32_t* position = nullptr;
  const int32_t* cache_row = nullptr;  // where each row's K/V goes
  SparseRows keys{};                   // window keys
  int32_t rows_per_list = 1;
};

// Activations of a pass, [rows, ...] with rows the lane's largest padded count. What is `Rows` has the activation type;
// the residual streams, and whatever is chosen or pooled from (router and index scores, compressor inputs), stay fp32.
struct LaneBuffers {
  Rows streams;          // [rows, streams * hidden] fp32
  float* mix;            // [rows, (2 + streams) * streams]
  float* post;           // [rows, streams]
  float* comb;           // [rows, streams * streams]
  Rows x;                // [rows, hidden] normed sublayer input
  Rows f;                // [rows, hidden] sublayer output
  Rows q_low;            // [rows, q_rank]
  Rows q;                // [rows, heads * head_dim]
  Rows kv;               // [rows, head_dim]
  Rows attn;             // [rows, heads * head_dim]
  Rows o_low;            // [rows, o_groups * o_rank]
  float* gate_logits;    // [rows, experts]
  int32_t* expert;       // [rows, top_k]
  float* expert_weight;  // [rows, top_k]
  MoeGroups groups;
  Rows pair_gate;    // [rows * top_k, inner]
  Rows pair_up;      // [rows * top_k, inner]
  Rows pair_out;     // [rows * top_k, hidden]
  Rows shared_gate;  // [rows, inner]
  Rows shared_up;    // [rows, inner]
  Rows shared_out;   // [rows, hidden]
  // Target lane only, and only with compressors:
  float* compress_kv;            // [rows, 2 * head_dim]
  float* compress_score;         // [rows, 2 * head_dim]
  Rows index_q;                  // [rows, index_heads * index_dim]
  float* index_weight;           // [rows, index_heads]
  MutableSparseRows index_rows;  // [rows, ceil128(index_top_k)]
  float* index_scores;           // [kIndexScoreRows, max_entries] scratch
  int32_t max_entries;           // LaneSizes
};

// Rows whose entries are scored at once where scores are kept in memory; more rows take turns.
inline constexpr int32_t kIndexScoreRows = 64;

struct LaneSizes {
  int32_t rows = 0;
  DType activations = DType::kF32;  // or kBf16
  int32_t experts = 0;
  int32_t experts_per_token = 0;
  bool compressors = false;
  int32_t max_entries = 0;  // compressed entries that a row may see
};

// A dense [rows, cols] matrix.
Rows CarveRows(DeviceArena& arena, const std::string& name, DType dtype, int64_t rows,
               int64_t cols);

LaneBuffers CarveLane(DeviceArena& arena, const std::string& name, const DeepseekConfig& config,
                      const LaneSizes& sizes);

// cos/sin for positions [0, positions). `compressed` selects the base (and YaRN) of layers with a compressor.
// f_i = theta^(-2i / rope); YaRN blends f_i and f_i / factor by a linear ramp over the correction range (Peng et al.,
// "YaRN", 2023); amplitude 1.
std::vector<float> RopeFrequencies(const DeepseekConfig& config, bool compressed);
RopeTable CarveRopeTable(DeviceArena& arena, const std::string& name, const DeepseekConfig& config,
                         bool compressed, int32_t positions);

}  // namespace firesteel
