// DSpark for DeepSeek-V4: a block of [anchor, noise, ...] rows through a few DeepSeek blocks, every row seeing the last
// window of committed positions and the whole block, then a Markov head that picks the drafts left to right.
//
// Context K/V of committed position t in every stage is kv(main_norm(main_proj(features_t))); it never enters the draft's
// residual stream. Row k of a block has position P + k and proposes the token at P + k + 1 (P: the anchor's position).
// Block rows always number the checkpoint's block size, also when fewer drafts are wanted: they attend to each other.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/drafters/drafter.h"
#include "engine/models/deepseek/deepseek_layer.h"
#include "engine/models/deepseek/deepseek_model.h"
#include "kernels/ops/draft_prepare/draft_prepare.h"

namespace firesteel {

class DsparkDrafter final : public Drafter {
 public:
  struct Options {
    DType cache_dtype = DType::kF32;
    DType activations = DType::kF32;
    int32_t draft_length = 0;  // 1..block
  };

  // `target` shares its embedding and LM head and must outlive the drafter.
  DsparkDrafter(const DeepseekModel& target, DsparkWeights weights, const Options& options);

  const DraftSpec& spec() const override { return spec_; }
  int64_t window_bytes_per_block(int32_t block_tokens) const override;
  WeightTraffic weight_traffic() const override;
  int64_t cache_traffic(int32_t sequences, int32_t context) const override;
  void set_expert_trace(std::span<int32_t* const> layers) override;
  void Bind(DeviceArena& arena, const StepLimits& limits,
            const TargetModel::Caches& caches) override;
  void EnqueuePrepare(StepContext& context) override;
  void EnqueueCommit(StepContext& context, const ConstRows& features) override;
  void EnqueuePropose(StepContext& context) override;

  // Results of the last proposal, device memory: U [draft rows, vocab] before the Markov bias, and the confidence
  // logits [sequences, K].
  const float* base_logits() const { return base_logits_; }
  const float* confidence() const { return confidence_; }
  DraftMeta& meta_for_test() { return meta_; }

  std::span<const DeepseekLayer> stages() const { return stages_; }

 private:
  void EnqueueHead(StepContext& context, const LaneRows& rows);

  const DeepseekModel& target_;
  const DeepseekConfig& config_;
  const DsparkWeights weights_;
  const Options options_;
  DraftSpec spec_;
  std::vector<DeepseekLayer> stages_;
  // Constant after Bind.
  DraftMeta meta_{};
  LaneBuffers lane_{};
  Rows main_;                     // [target rows, hidden] main_x
  Rows context_kv_;               // [target rows, head_dim]
  Rows hidden_;                   // [draft rows, hidden] pre-norm, read by the confidence head
  Rows normed_;                   // [draft rows, hidden]
  float* base_logits_ = nullptr;  // [draft rows, vocab]
  float* markov_ = nullptr;       // [sequences, vocab]
  float* confidence_ = nullptr;   // [sequences, K]
};

}  // namespace firesteel
