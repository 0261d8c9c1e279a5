// Names, shapes and places of every tensor of a DeepSeek-V4 checkpoint, drafter included.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/models/deepseek/deepseek_config.h"
#include "engine/models/target_model.h"
#include "engine/weights/synthetic_tensors.h"
#include "engine/weights/weight_placer.h"
#include "engine/weights/weight_set.h"
#include "kernels/ops/linear/linear.h"
#include "kernels/ops/moe/moe.h"

namespace firesteel {

struct HyperWeights {
  Weight fn;  // F32 [(2 + streams) * streams, streams * hidden]; [streams, ...] for a head
  const float* base = nullptr;
  const float* scale = nullptr;
};

struct CompressorWeights {
  Weight wkv;                      // BF16 [channels, hidden]
  Weight wgate;                    // BF16 [channels, hidden]
  const float* ape = nullptr;      // [ratio, channels]
  const uint16_t* norm = nullptr;  // [width]
};

// One target layer or draft stage.
struct BlockWeights {
  HyperWeights attn_hyper;
  HyperWeights ffn_hyper;
  const uint16_t* attn_norm = nullptr;
  const uint16_t* ffn_norm = nullptr;
  const float* sink = nullptr;  // [heads]
  const uint16_t* q_norm = nullptr;
  const uint16_t* kv_norm = nullptr;
  Weight wq_a, wq_b, wkv, wo_a, wo_b;
  CompressorWeights compressor;          // ratio 4 and 128
  CompressorWeights index_compressor;    // ratio 4
  Weight index_wq_b, index_weights;      // ratio 4
  Weight gate;                           // BF16 [experts, hidden]
  const float* gate_bias = nullptr;      // null in hash layers
  const int64_t* token_table = nullptr;  // [vocab, top_k], hash layers only
  ExpertWeights expert_w1, expert_w2, expert_w3;
  Weight shared_w1, shared_w2, shared_w3;
};

struct DeepseekWeights {
  const uint16_t* embed = nullptr;  // [vocab, hidden]
  Weight head;                      // BF16 [vocab, hidden]
  const uint16_t* norm = nullptr;
  HyperWeights head_hyper;
  std::vector<BlockWeights> layers;
};

struct DsparkWeights {
  Weight main_proj;  // [hidden, stages * hidden]
  const uint16_t* main_norm = nullptr;
  std::vector<BlockWeights> stages;
  const uint16_t* norm = nullptr;
  HyperWeights head_hyper;
  const uint16_t* markov_w1 = nullptr;   // [vocab, rank]
  Weight markov_w2;                      // [vocab, rank]
  const uint16_t* confidence = nullptr;  // [hidden + rank]
};

// The full tensor list that a checkpoint of this shape must hold, drafter included.
std::vector<ExpectedTensor> ExpectedDeepseekTensors(const DeepseekConfig& config);

DeepseekWeights LoadDeepseekWeights(const DeepseekConfig& config, WeightSet& set,
                                    WeightPlacer& placer);

// REQUIRES: config.dspark.block > 0.
DsparkWeights LoadDsparkWeights(const DeepseekConfig& config, WeightSet& set, WeightPlacer& placer);

// The same tensors without a checkpoint.
DeepseekWeights MakeDeepseekWeights(const DeepseekConfig& config, SyntheticTensors& tensors);
DsparkWeights MakeDsparkWeights(const DeepseekConfig& config, SyntheticTensors& tensors);

// Adds what one block must read to `traffic`.
void AddBlockTraffic(const DeepseekConfig& config, const BlockWeights& block, int32_t experts,
                     int32_t experts_per_token, WeightTraffic* traffic);
void AddWeightTraffic(const Weight& weight, WeightTraffic* traffic);

// Takes the drafter's tensors without placing them: served with another drafter, or none.
void SkipDsparkWeights(const DeepseekConfig& config, WeightSet& set);

}  // namespace firesteel
