#include "engine/drafters/dspark/dspark_drafter.h"

#include <string>
#include <utility>

#include "kernels/core/launch.h"
#include "kernels/core/math.h"
#include "kernels/ops/embed/embed.h"
#include "kernels/ops/kv_write/kv_write.h"
#include "kernels/ops/markov/markov.h"
#include "kernels/ops/rms_norm/rms_norm.h"
#include "kernels/ops/visibility.h"

namespace firesteel {

DsparkDrafter::DsparkDrafter(const DeepseekModel& target, DsparkWeights weights,
                             const Options& options)
    : target_(target), config_(target.config()), weights_(std::move(weights)), options_(options) {
  spec_.draft_length = options_.draft_length;
  spec_.block_rows = config_.dspark.block;
  spec_.tapped_layers = config_.dspark.target_layers;
  for (const BlockWeights& stage : weights_.stages) {
    DeepseekLayer::Setup setup;
    setup.experts = config_.dspark.experts;
    setup.experts_per_token = config_.dspark.experts_per_token;
    stages_.emplace_back(config_, stage, setup);
  }
}

int64_t DsparkDrafter::window_bytes_per_block(int32_t block_tokens) const {
  return static_cast<int64_t>(stages_.size()) * KvPageBytes(MainCacheFormat(options_.cache_dtype),
                                                            config_.head_dim, config_.rope_dim,
                                                            block_tokens);
}

WeightTraffic DsparkDrafter::weight_traffic() const {
  WeightTraffic traffic;
  for (const BlockWeights& stage : weights_.stages) {
    AddBlockTraffic(config_, stage, config_.dspark.experts, config_.dspark.experts_per_token,
                    &traffic);
  }
  AddWeightTraffic(weights_.main_proj, &traffic);
  AddWeightTraffic(weights_.head_hyper.fn, &traffic);
  AddWeightTraffic(target_.weights().head, &traffic);
  for (int32_t k = 0; k < options_.draft_length; ++k)
    AddWeightTraffic(weights_.markov_w2, &traffic);
  return traffic;
}

int64_t DsparkDrafter::cache_traffic(int32_t sequences, int32_t context) const {
  const int64_t keys = SharedBlockWindow(context, config_.dspark.block, config_.window).size();
  return static_cast<int64_t>(stages_.size()) * sequences * keys *
         KvRecordBytes(MainCacheFormat(options_.cache_dtype), config_.head_dim, config_.rope_dim);
}

void DsparkDrafter::set_expert_trace(std::span<int32_t* const> layers) {
  for (size_t s = 0; s < stages_.size(); ++s) {
    stages_[s].set_trace({.experts = layers.empty() ? nullptr : layers[s]});
  }
}

void DsparkDrafter::Bind(DeviceArena& arena, const StepLimits& limits,
                         const TargetModel::Caches& caches) {
  const int32_t block = config_.dspark.block;
  const int64_t draft_rows = int64_t{limits.sequences} * block;
  const RopeTable rope = CarveRopeTable(arena, "draft.rope", config_, false, caches.positions);
  for (size_t s = 0; s < stages_.size(); ++s) {
    BlockCaches c;
    c.window = CarveWindowPages(arena, "mtp." + std::to_string(s) + ".window", config_,
                                options_.cache_dtype, caches);
    stages_[s].set_caches(c);
    stages_[s].set_rope(rope);
  }
  LaneSizes sizes;
  sizes.rows = static_cast<int32_t>(draft_rows);
  sizes.activations = options_.activations;
  sizes.experts = config_.dspark.experts;
  sizes.experts_per_token = config_.dspark.experts_per_token;
  lane_ = CarveLane(arena, "draft", config_, sizes);
  meta_.slot = arena.Carve<int32_t>("draft.slot", limits.sequences);
  meta_.chain = arena.Carve<int32_t>("draft.chain", int64_t{limits.sequences} * (block + 1));
  meta_.token = arena.Carve<int32_t>("draft.token", draft_rows);
  meta_.position = arena.Carve<int32_t>("draft.position", draft_rows);
  meta_.window_row = arena.Carve<int32_t>("draft.window_row", draft_rows);
  meta_.keys.width = RoundUp(config_.window + block, 128);
  meta_.keys.index =
      arena.Carve<int32_t>("draft.keys", int64_t{limits.sequences} * meta_.keys.width);
  meta_.keys.valid = arena.Carve<int32_t>("draft.keys_valid", limits.sequences);
  meta_.commit_row = arena.Carve<int32_t>("draft.commit_row", limits.rows);
  const DType dtype = options_.activations;
  main_ = CarveRows(arena, "draft.main", dtype, limits.rows, config_.hidden);
  context_kv_ = CarveRows(arena, "draft.context_kv", dtype, limits.rows, config_.head_dim);
  hidden_ = CarveRows(arena, "draft.hidden", dtype, draft_rows, config_.hidden);
  normed_ = CarveRows(arena, "draft.normed", dtype, draft_rows, config_.hidden);
  base_logits_ = arena.Carve<float>("draft.base_logits", draft_rows * config_.vocab);
  markov_ = arena.Carve<float>("draft.markov", int64_t{limits.sequences} * config_.vocab);
  confidence_ =
      arena.Carve<float>("draft.confidence", int64_t{limits.sequences} * options_.draft_length);
}

void DsparkDrafter::EnqueuePrepare(StepContext& context) {
  DraftPrepareArgs args{};
  args.slots = context.meta.slots;
  args.sequences = context.meta.sequences;
  args.rows = context.meta.rows;
  args.live = context.meta.live;
  args.draft = meta_;
  args.window_group = context.meta.window_group;
  args.window_tokens = config_.window;
  args.block = config_.dspark.block;
  args.noise_token = config_.dspark.noise_token;
  args.padded_rows = context.shape.rows;
  args.padded_sequences = context.shape.sequences;
  Launch(context.stream, context.ops.draft_prepare, args);
}

void DsparkDrafter::EnqueueCommit(StepContext& context, const ConstRows& features) {
  EnqueuePrepare(context);
  const int32_t rows = context.shape.rows;
  const LiveCount live = &context.meta.live->commit_rows;
  EnqueueLinear(context, features, weights_.main_proj, main_, rows, live);
  Launch(
      context.stream, context.ops.rms_norm,
      RmsNormArgs{main_, main_, weights_.main_norm, live, rows, config_.hidden, config_.norm_eps});
  for (const DeepseekLayer& stage : stages_) {
    EnqueueLinear(context, main_, stage.weights().wkv, context_kv_, rows, live);
    Launch(context.stream, context.ops.kv_write,
           KvWriteArgs{context_kv_, stage.weights().kv_norm, context.meta.rows.position,
                       meta_.commit_row, stage.setup().rope, stage.caches().window, live, rows,
                       config_.norm_eps});
  }
}

void DsparkDrafter::EnqueuePropose(StepContext& context) {
  LaneRows rows;
  rows.rows = context.shape.sequences * config_.dspark.block;
  rows.live = &context.meta.live->draft_rows;
  rows.token = meta_.token;
  rows.position = meta_.position;
  rows.cache_row = meta_.window_row;
  rows.keys = meta_.keys.view();
  rows.keys.max_valid = config_.window + config_.dspark.block;
  rows.rows_per_list = config_.dspark.block;
  Launch(context.stream, context.ops.embed,
         EmbedArgs{rows.token, target_.weights().embed, lane_.streams, rows.live, rows.rows,
                   config_.hidden, config_.streams});
  for (const DeepseekLayer& stage : stages_) stage.Enqueue(context, rows, lane_);
  EnqueueHead(context, rows);

  const LiveCount sequences = &context.meta.live->draft_sequences;
  for (int32_t k = 0; k < options_.draft_length; ++k) {
    Launch(context.stream, context.ops.markov_step,
           MarkovStepArgs{base_logits_, weights_.markov_w1, weights_.markov_w2, markov_,
                          context.meta.slots, meta_, sequences, context.shape.sequences,
                          config_.dspark.block, k});
  }
  ConfidenceArgs confidence{};
  confidence.hidden = hidden_;
  confidence.w1 = weights_.markov_w1;
  confidence.weight = weights_.confidence;
  confidence.draft = meta_;
  confidence.logit = confidence_;
  confidence.live_sequences = sequences;
  confidence.padded_sequences = context.shape.sequences;
  confidence.hidden_size = config_.hidden;
  confidence.rank = config_.dspark.markov_rank;
  confidence.block = config_.dspark.block;
  confidence.steps = options_.draft_length;
  Launch(context.stream, context.ops.confidence, confidence);
}

void DsparkDrafter::EnqueueHead(StepContext& context, const LaneRows& rows) {
  EnqueueHyperHead(context, config_, weights_.head_hyper, rows, lane_, hidden_);
  Launch(context.stream, context.ops.rms_norm,
         RmsNormArgs{hidden_, normed_, weights_.norm, rows.live, rows.rows, config_.hidden,
                     config_.norm_eps});
  EnqueueLinear(context, normed_, target_.weights().head, F32Rows(base_logits_, config_.vocab),
                rows.rows, rows.live);
}

}  // namespace firesteel
