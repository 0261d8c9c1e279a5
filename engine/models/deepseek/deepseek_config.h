// Shape of a DeepSeek-V4 checkpoint and of its DSpark drafter, checked field by field.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/models/model_config.h"
#include "kernels/core/dtype.h"
#include "kernels/core/status.h"

namespace firesteel {

// Layers of this compression ratio pool overlapping groups and choose entries by the indexer.
inline constexpr int32_t kIndexedRatio = 4;

struct YarnScaling {
  bool enabled = false;
  float factor = 1.0F;
  int32_t original_positions = 0;
  float beta_fast = 32.0F;
  float beta_slow = 1.0F;
};

struct DsparkConfig {
  int32_t block = 0;   // draft rows per round (gamma); 0: the checkpoint has no drafter
  int32_t stages = 0;  // draft layers
  int32_t noise_token = 0;
  int32_t markov_rank = 0;
  int32_t experts = 0;
  int32_t experts_per_token = 0;
  std::vector<int32_t> target_layers;  // features are taken after these layers
};

struct DeepseekConfig {
  int32_t vocab = 0;
  int32_t hidden = 0;
  int32_t layers = 0;
  int32_t heads = 0;
  int32_t head_dim = 0;
  int32_t rope_dim = 0;
  int32_t q_rank = 0;
  int32_t o_groups = 0;
  int32_t o_rank = 0;
  int32_t window = 0;
  int32_t expert_inner = 0;
  int32_t experts = 0;
  int32_t experts_per_token = 0;
  float routed_scaling = 1.0F;
  float swiglu_limit = 0.0F;
  int32_t hash_layers = 0;
  int32_t index_heads = 0;
  int32_t index_dim = 0;
  int32_t index_top_k = 0;
  int32_t streams = 0;
  int32_t sinkhorn_iterations = 0;
  float hyper_eps = 0.0F;
  float norm_eps = 0.0F;
  float rope_theta = 0.0F;           // layers without a compressor
  float compress_rope_theta = 0.0F;  // layers with one: queries, window and compressed keys alike
  YarnScaling yarn;                  // applies with compress_rope_theta only
  int32_t max_positions = 0;
  std::vector<int32_t> ratios;        // [layers] 0, 4 or 128
  DType linear_dtype = DType::kBf16;  // kF8E4M3 with a quantization_config
  int32_t fp8_block = 128;
  DType expert_dtype = DType::kBf16;  // or kF4E2M1x2
  DsparkConfig dspark;
};

// Errors name the field, the value found and the values supported.
Result<DeepseekConfig> ParseDeepseekConfig(const ModelConfig& config);

}  // namespace firesteel
