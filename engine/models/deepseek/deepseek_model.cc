#include "engine/models/deepseek/deepseek_model.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/core/launch.h"
#include "kernels/core/math.h"
#include "kernels/ops/embed/embed.h"
#include "kernels/ops/feature_tap/feature_tap.h"
#include "kernels/ops/gather/gather.h"
#include "kernels/ops/rms_norm/rms_norm.h"
#include "kernels/ops/visibility.h"

namespace firesteel {

KvFormat MainCacheFormat(DType cache_dtype) {
  if (cache_dtype == DType::kF32) return KvFormat::kF32;
  return cache_dtype == DType::kBf16 ? KvFormat::kBf16 : KvFormat::kFp8;
}

KvFormat IndexCacheFormat(DType cache_dtype) {
  if (cache_dtype == DType::kF32) return KvFormat::kF32;
  return cache_dtype == DType::kBf16 ? KvFormat::kBf16 : KvFormat::kFp8Index;
}

DeepseekModel::DeepseekModel(const DeepseekConfig& config, DeepseekWeights weights,
                             const Options& options)
    : config_(config), weights_(std::move(weights)), options_(options) {
  spec_.vocab = config_.vocab;
  spec_.max_positions = config_.max_positions;
  spec_.window_tokens = config_.window;
  for (const int32_t ratio : {4, 128}) {
    if (std::find(config_.ratios.begin(), config_.ratios.end(), ratio) == config_.ratios.end()) {
      continue;
    }
    spec_.compress_ratios.push_back(ratio);
    spec_.list_all_entries.push_back(ratio == 128);
  }
  for (size_t l = 0; l < weights_.layers.size(); ++l) {
    DeepseekLayer::Setup setup;
    setup.ratio = config_.ratios[l];
    const auto found =
        std::find(spec_.compress_ratios.begin(), spec_.compress_ratios.end(), setup.ratio);
    setup.compressor = found == spec_.compress_ratios.end()
                           ? -1
                           : static_cast<int32_t>(found - spec_.compress_ratios.begin());
    setup.experts = config_.experts;
    setup.experts_per_token = config_.experts_per_token;
    layers_.emplace_back(config_, weights_.layers[l], setup);
  }
}

int64_t DeepseekModel::context_bytes_per_block(int32_t block_tokens) const {
  int64_t bytes = 0;
  for (const int32_t ratio : config_.ratios) {
    if (ratio == 0) continue;
    const int32_t entries = block_tokens / ratio;
    bytes += KvPageBytes(MainCacheFormat(options_.cache_dtype), config_.head_dim, config_.rope_dim,
                         entries);
    if (ratio == kIndexedRatio) {
      bytes += KvPageBytes(IndexCacheFormat(options_.cache_dtype), config_.index_dim,
                           config_.rope_dim, entries);
      // Compressor tails: kv and score of the block's last tokens, see CompressTail.
      bytes += int64_t{2} * ratio * (config_.head_dim + config_.index_dim) *
               static_cast<int64_t>(sizeof(float));
    }
  }
  return bytes;
}

int64_t DeepseekModel::window_bytes_per_block(int32_t block_tokens) const {
  return config_.layers * KvPageBytes(MainCacheFormat(options_.cache_dtype), config_.head_dim,
                                      config_.rope_dim, block_tokens);
}

WeightTraffic DeepseekModel::weight_traffic() const {
  WeightTraffic traffic;
  for (const BlockWeights& block : weights_.layers) {
    AddBlockTraffic(config_, block, config_.experts, config_.experts_per_token, &traffic);
  }
  AddWeightTraffic(weights_.head_hyper.fn, &traffic);
  AddWeightTraffic(weights_.head, &traffic);
  return traffic;
}

int64_t DeepseekModel::cache_traffic(int32_t sequences, int32_t rows, int32_t context) const {
  const int64_t record =
      KvRecordBytes(MainCacheFormat(options_.cache_dtype), config_.head_dim, config_.rope_dim);
  const int64_t index_record =
      KvRecordBytes(IndexCacheFormat(options_.cache_dtype), config_.index_dim, config_.rope_dim);
  int64_t bytes = 0;
  for (const int32_t ratio : config_.ratios) {
    // The rows' own keys are written and read in the same step, and left out.
    bytes += sequences * record * Min(context, config_.window - 1);
    if (ratio == 0) continue;
    const int64_t entries = VisibleEntries(context, ratio);
    if (ratio == kIndexedRatio) {
      // With no more entries than are kept nothing is scored.
      if (entries > config_.index_top_k) bytes += sequences * index_record * entries;
      bytes += rows * record * Min<int64_t>(entries, config_.index_top_k);
    } else {
      bytes += sequences * record * entries;
    }
  }
  return bytes;
}

void DeepseekModel::set_expert_trace(std::span<int32_t* const> layers) {
  for (size_t l = 0; l < layers_.size(); ++l) {
    layers_[l].set_trace({.experts = layers.empty() ? nullptr : layers[l]});
  }
}

namespace {

KvPages CarvePages(DeviceArena& arena, const std::string& name, KvFormat format, int32_t width,
                   int32_t rope, int32_t block_entries, int32_t blocks) {
  KvPages pages;
  pages.page_bytes = KvPageBytes(format, width, rope, block_entries);
  pages.data = arena.Carve<std::byte>(name, pages.page_bytes * blocks);
  pages.block_entries = block_entries;
  pages.width = width;
  pages.rope = rope;
  pages.format = format;
  return pages;
}

CompressTail CarveTail(DeviceArena& arena, const std::string& name, int32_t ratio, int32_t width,
                       int32_t blocks) {
  const int64_t count = int64_t{blocks} * ratio * width;
  return {arena.Carve<float>(name + "_kv", count), arena.Carve<float>(name + "_score", count)};
}

}  // namespace

KvPages CarveWindowPages(DeviceArena& arena, const std::string& name, const DeepseekConfig& config,
                         DType cache_dtype, const TargetModel::Caches& caches) {
  return CarvePages(arena, name, MainCacheFormat(cache_dtype), config.head_dim, config.rope_dim,
                    caches.window_block_tokens, caches.window_blocks);
}

void DeepseekModel::BindLayer(DeviceArena& arena, const Caches& caches, int32_t index) {
  DeepseekLayer& layer = layers_[static_cast<size_t>(index)];
  const std::string name = "layers." + std::to_string(index);
  const int32_t ratio = layer.setup().ratio;
  BlockCaches c;
  c.window = CarveWindowPages(arena, name + ".window", config_, options_.cache_dtype, caches);
  if (ratio != 0) {
    const int32_t entries = caches.context_block_tokens / ratio;
    c.entries = CarvePages(arena, name + ".entries", MainCacheFormat(options_.cache_dtype),
                           config_.head_dim, config_.rope_dim, entries, caches.context_blocks);
    // An open group (and with overlap the one before it) must survive rows that are written and then rejected.
    const int32_t pooled = ratio == kIndexedRatio ? 2 * ratio : ratio;
    c.ring = RoundUp(pooled + caches.speculative_rows, 2);
    const int64_t channels = int64_t{config_.head_dim} * (ratio == kIndexedRatio ? 2 : 1);
    c.ring_kv = arena.Carve<float>(name + ".ring_kv", caches.slots * c.ring * channels);
    c.ring_score = arena.Carve<float>(name + ".ring_score", caches.slots * c.ring * channels);
  }
  if (ratio == kIndexedRatio) {
    c.index_keys = CarvePages(arena, name + ".index_keys", IndexCacheFormat(options_.cache_dtype),
                              config_.index_dim, config_.rope_dim,
                              caches.context_block_tokens / ratio, caches.context_blocks);
    c.index_ring = c.ring;
    const int64_t channels = int64_t{2} * config_.index_dim;
    c.index_ring_kv = arena.Carve<float>(name + ".index_ring_kv", caches.slots * c.ring * channels);
    c.index_ring_score =
        arena.Carve<float>(name + ".index_ring_score", caches.slots * c.ring * channels);
    c.tail = CarveTail(arena, name + ".tail", ratio, config_.head_dim, caches.context_blocks);
    c.index_tail =
        CarveTail(arena, name + ".index_tail", ratio, config_.index_dim, caches.context_blocks);
  }
  layer.set_caches(c);
}

void DeepseekModel::Bind(DeviceArena& arena, const StepLimits& limits, const Caches& caches) {
  const RopeTable plain = CarveRopeTable(arena, "rope.main", config_, false, caches.positions);
  const RopeTable compressed =
      CarveRopeTable(arena, "rope.compress", config_, true, caches.positions);
  for (int32_t l = 0; l < config_.layers; ++l) {
    DeepseekLayer& layer = layers_[static_cast<size_t>(l)];
    layer.set_rope(layer.setup().ratio == 0 ? plain : compressed);
    BindLayer(arena, caches, l);
  }
  LaneSizes sizes;
  sizes.rows = limits.rows;
  sizes.activations = options_.activations;
  sizes.experts = config_.experts;
  sizes.experts_per_token = config_.experts_per_token;
  sizes.compressors = !spec_.compress_ratios.empty();
  sizes.max_entries = CeilDiv(caches.positions, kIndexedRatio);
  lane_ = CarveLane(arena, "target", config_, sizes);
  const int64_t taps = static_cast<int64_t>(options_.tapped_layers.size());
  const DType dtype = options_.activations;
  features_ = CarveRows(arena, "target.features", dtype, limits.rows, taps * config_.hidden);
  hidden_ = CarveRows(arena, "target.hidden", dtype, limits.rows, config_.hidden);
  logit_hidden_ = CarveRows(arena, "target.logit_hidden", dtype, limits.logit_rows, config_.hidden);
  logits_ = arena.Carve<float>("target.logits", int64_t{limits.logit_rows} * config_.vocab);
}

TargetOut DeepseekModel::Enqueue(StepContext& context) {
  const StepMeta& meta = context.meta;
  LaneRows rows;
  rows.rows = context.shape.rows;
  rows.live = &meta.live->rows;
  rows.token = meta.rows.token;
  rows.position = meta.rows.position;
  rows.cache_row = meta.rows.window_row;
  rows.keys = meta.window.view();
  rows.keys.max_valid = config_.window;

  Launch(context.stream, context.ops.embed,
         EmbedArgs{rows.token, weights_.embed, lane_.streams, rows.live, rows.rows, config_.hidden,
                   config_.streams});
  for (int32_t l = 0; l < config_.layers; ++l) {
    layers_[static_cast<size_t>(l)].Enqueue(context, rows, lane_);
    for (size_t t = 0; t < options_.tapped_layers.size(); ++t) {
      if (options_.tapped_layers[t] != l) continue;
      Rows column = features_;
      column.data = static_cast<std::byte*>(features_.data) +
                    static_cast<int64_t>(t) * config_.hidden * DTypeBytes(features_.dtype);
      Launch(context.stream, context.ops.feature_tap,
             FeatureTapArgs{lane_.streams, column, rows.live, rows.rows, config_.hidden,
                            config_.streams});
    }
  }

  EnqueueHyperHead(context, config_, weights_.head_hyper, rows, lane_, hidden_);

  const LiveCount live_logits = &meta.live->logit_rows;
  const int32_t logit_rows = context.shape.logit_rows;
  Launch(
      context.stream, context.ops.gather,
      GatherArgs{hidden_, meta.logit_rows, logit_hidden_, live_logits, logit_rows, config_.hidden});
  Launch(context.stream, context.ops.rms_norm,
         RmsNormArgs{logit_hidden_, logit_hidden_, weights_.norm, live_logits, logit_rows,
                     config_.hidden, config_.norm_eps});
  EnqueueLinear(context, logit_hidden_, weights_.head, F32Rows(logits_, config_.vocab), logit_rows,
                live_logits);
  TargetOut out;
  out.logits = logits_;
  out.features = features_;
  return out;
}

}  // namespace firesteel
