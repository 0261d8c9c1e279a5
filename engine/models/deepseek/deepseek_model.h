// The DeepSeek-V4 target: embedding, blocks, hyper-connection head, LM head over the rows that need logits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/models/deepseek/deepseek_config.h"
#include "engine/models/deepseek/deepseek_layer.h"
#include "engine/models/deepseek/deepseek_weights.h"
#include "engine/models/target_model.h"
#include "kernels/core/device.h"

namespace firesteel {

// Storage formats that a cache dtype means for this family: main rows and index keys.
KvFormat MainCacheFormat(DType cache_dtype);
KvFormat IndexCacheFormat(DType cache_dtype);

// The window pool of one target layer or draft stage.
KvPages CarveWindowPages(DeviceArena& arena, const std::string& name, const DeepseekConfig& config,
                         DType cache_dtype, const TargetModel::Caches& caches);

class DeepseekModel final : public TargetModel {
 public:
  struct Options {
    DType cache_dtype = DType::kF32;     // kF32, kBf16, kF8E4M3
    DType activations = DType::kF32;     // kF32, kBf16
    std::vector<int32_t> tapped_layers;  // features are captured after these; empty: none
  };

  DeepseekModel(const DeepseekConfig& config, DeepseekWeights weights, const Options& options);

  const TargetSpec& spec() const override { return spec_; }
  int64_t context_bytes_per_block(int32_t block_tokens) const override;
  int64_t window_bytes_per_block(int32_t block_tokens) const override;
  WeightTraffic weight_traffic() const override;
  int64_t cache_traffic(int32_t sequences, int32_t rows, int32_t context) const override;
  void set_expert_trace(std::span<int32_t* const> layers) override;
  void Bind(DeviceArena& arena, const StepLimits& limits, const Caches& caches) override;
  TargetOut Enqueue(StepContext& context) override;

  const DeepseekConfig& config() const { return config_; }
  const DeepseekWeights& weights() const { return weights_; }
  std::span<const DeepseekLayer> layers() const { return layers_; }
  DeepseekLayer& layer_for_test(int32_t index) { return layers_[static_cast<size_t>(index)]; }

 private:
  void BindLayer(DeviceArena& arena, const Caches& caches, int32_t index);

  const DeepseekConfig config_;
  const DeepseekWeights weights_;
  const Options options_;
  TargetSpec spec_;
  std::vector<DeepseekLayer> layers_;
  // Constant after Bind.
  LaneBuffers lane_{};
  Rows features_;            // [rows, taps * hidden]
  Rows hidden_;              // [rows, hidden] collapsed streams
  Rows logit_hidden_;        // [logit rows, hidden]
  float* logits_ = nullptr;  // [logit rows, vocab]
};

}  // namespace firesteel
