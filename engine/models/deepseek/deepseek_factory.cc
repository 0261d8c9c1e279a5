#include "engine/models/deepseek/deepseek_factory.h"

#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "engine/drafters/dspark/dspark_drafter.h"
#include "engine/drafters/none/none_drafter.h"
#include "engine/models/deepseek/deepseek_model.h"
#include "engine/weights/weight_set.h"

namespace firesteel {
namespace {

DType StorageOf(CacheDtype dtype) {
  if (dtype == CacheDtype::kFp32) return DType::kF32;
  return dtype == CacheDtype::kBf16 ? DType::kBf16 : DType::kF8E4M3;
}

Status CheckCacheDtype(const DeepseekConfig& config, CacheDtype dtype) {
  const int32_t nope = config.head_dim - config.rope_dim;
  if (dtype != CacheDtype::kFp8 || nope % kFp8Block == 0) return Status::Ok();
  return Unsupported("kv-cache-dtype fp8 needs head_dim - qk_rope_head_dim in multiples of " +
                     std::to_string(kFp8Block) + ", the checkpoint has " + std::to_string(nope));
}

// K in effect, 0 when the drafter is off.
Result<int32_t> DraftLength(const DeepseekConfig& config, const EngineOptions& options) {
  if (options.drafter == "none") {
    if (options.draft_length > 0) {
      return InvalidArgument("draft-length is " + std::to_string(options.draft_length) +
                             ", needs 0 with drafter 'none'");
    }
    return 0;
  }
  if (config.dspark.block == 0) {
    return Unsupported(
        "drafter 'dspark' needs dspark_block_size in config.json; this checkpoint "
        "has no drafter, use drafter 'none'");
  }
  if (options.draft_length == kDraftLengthAuto ||
      options.draft_length == kDraftLengthFromCheckpoint) {
    return config.dspark.block;
  }
  if (options.draft_length > config.dspark.block) {
    return InvalidArgument("draft-length is " + std::to_string(options.draft_length) +
                           ", needs 0.." + std::to_string(config.dspark.block) +
                           ": the checkpoint's drafter was trained for that block size");
  }
  return options.draft_length;
}

// Values inside tensors that kernels use as indices.
Status CheckTokenTables(const DeepseekConfig& config, const Checkpoint& checkpoint) {
  for (int32_t l = 0; l < config.layers && l < config.hash_layers; ++l) {
    const std::string name = "layers." + std::to_string(l) + ".ffn.gate.tid2eid";
    const StoredTensor* tensor = checkpoint.Find(name);
    for (size_t i = 0; tensor != nullptr && i < tensor->data.size() / 8; ++i) {
      int64_t expert;
      std::memcpy(&expert, tensor->data.data() + i * 8, sizeof(expert));
      if (expert < 0 || expert >= config.experts) {
        return DataLoss(name + "[" + std::to_string(i) + "] is " + std::to_string(expert) +
                        ", needs an expert in 0.." + std::to_string(config.experts - 1));
      }
    }
  }
  return Status::Ok();
}

// Where the two halves of a model's weights come from.
struct WeightSources {
  std::function<DeepseekWeights()> target;
  std::function<DsparkWeights()> draft;  // called only if there are drafts
};

void Assemble(const DeepseekConfig& config, const EngineOptions& options, int32_t draft_length,
              const WeightSources& weights, LoadedModel* model) {
  DeepseekModel::Options target_options;
  target_options.cache_dtype = StorageOf(options.cache_dtype);
  target_options.activations = options.activations;
  if (draft_length > 0) target_options.tapped_layers = config.dspark.target_layers;
  auto target = std::make_unique<DeepseekModel>(config, weights.target(), target_options);
  if (draft_length > 0) {
    DsparkDrafter::Options draft_options;
    draft_options.cache_dtype = target_options.cache_dtype;
    draft_options.activations = target_options.activations;
    draft_options.draft_length = draft_length;
    model->drafter = std::make_unique<DsparkDrafter>(*target, weights.draft(), draft_options);
  } else {
    model->drafter = std::make_unique<NoneDrafter>();
  }
  model->target = std::move(target);
}

}  // namespace

Status CreateDeepseek(const EngineOptions& options, Device& device, DeviceArena& arena,
                      LoadedModel* model) {
  FIRESTEEL_ASSIGN_OR_RETURN(const DeepseekConfig config, ParseDeepseekConfig(model->config));
  FIRESTEEL_RETURN_IF_ERROR(CheckCacheDtype(config, options.cache_dtype));
  FIRESTEEL_ASSIGN_OR_RETURN(const int32_t draft_length, DraftLength(config, options));
  FIRESTEEL_ASSIGN_OR_RETURN(WeightSet set,
                             WeightSet::Match(*model->checkpoint, ExpectedDeepseekTensors(config)));
  FIRESTEEL_RETURN_IF_ERROR(CheckTokenTables(config, *model->checkpoint));

  WeightPlacer placer(device, arena);
  const WeightSources weights{[&] { return LoadDeepseekWeights(config, set, placer); },
                              [&] { return LoadDsparkWeights(config, set, placer); }};
  Assemble(config, options, draft_length, weights, model);
  if (draft_length == 0 && config.dspark.block > 0) SkipDsparkWeights(config, set);
  return set.CheckAllTaken();
}

Status CreateSyntheticDeepseek(const DeepseekConfig& config, const EngineOptions& options,
                               Device& device, DeviceArena& arena, LoadedModel* model) {
  FIRESTEEL_RETURN_IF_ERROR(CheckCacheDtype(config, options.cache_dtype));
  FIRESTEEL_ASSIGN_OR_RETURN(const int32_t draft_length, DraftLength(config, options));
  SyntheticTensors tensors(device, arena, config.experts);
  const WeightSources weights{[&] { return MakeDeepseekWeights(config, tensors); },
                              [&] { return MakeDsparkWeights(config, tensors); }};
  Assemble(config, options, draft_length, weights, model);
  return Status::Ok();
}

}  // namespace firesteel
