#include "engine/models/synthetic_model.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "engine/drafters/dspark/dspark_drafter.h"
#include "engine/models/deepseek/deepseek_factory.h"
#include "engine/models/deepseek/deepseek_model.h"
#include "engine/weights/synthetic_tensors.h"

namespace firesteel {
namespace {

// Ratios of DeepSeek-V4-Flash: window only on the first two layers, then overlapping and long groups in turn.
std::vector<int32_t> V4Ratios(int32_t layers) {
  std::vector<int32_t> ratios(static_cast<size_t>(layers), 0);
  for (int32_t l = 2; l < layers; ++l) ratios[static_cast<size_t>(l)] = l % 2 == 0 ? 4 : 128;
  return ratios;
}

void SetDspark(int32_t stages, DeepseekConfig* c) {
  c->dspark.block = 5;
  c->dspark.stages = stages;
  c->dspark.noise_token = c->vocab - 1;
  c->dspark.experts = c->experts;
  c->dspark.experts_per_token = c->experts_per_token;
  for (int32_t s = 0; s < stages; ++s)
    c->dspark.target_layers.push_back(std::max(0, c->layers - stages + s));
}

// What all V4 checkpoints have in common.
DeepseekConfig CommonConfig() {
  DeepseekConfig c;
  c.rope_dim = 64;
  c.routed_scaling = 1.5F;
  c.swiglu_limit = 10.0F;
  c.streams = 4;
  c.sinkhorn_iterations = 20;
  c.hyper_eps = 1e-6F;
  c.norm_eps = 1e-6F;
  c.rope_theta = 10000.0F;
  c.compress_rope_theta = 160000.0F;
  c.yarn = {true, 16.0F, 65536, 32.0F, 1.0F};
  c.max_positions = 1 << 20;
  c.linear_dtype = DType::kF8E4M3;
  c.expert_dtype = DType::kF4E2M1x2;
  return c;
}

DeepseekConfig V4Flash(int32_t layers) {
  DeepseekConfig c = CommonConfig();
  c.vocab = 129280;
  c.hidden = 4096;
  c.layers = layers == 0 ? 43 : layers;
  c.heads = 64;
  c.head_dim = 512;
  c.q_rank = 1024;
  c.o_groups = 8;
  c.o_rank = 1024;
  c.window = 128;
  c.expert_inner = 2048;
  c.experts = 256;
  c.experts_per_token = 6;
  c.hash_layers = 3;
  c.index_heads = 64;
  c.index_dim = 128;
  c.index_top_k = 512;
  c.dspark.markov_rank = 256;
  return c;
}

// The same structure in sizes for a test.
DeepseekConfig Tiny(int32_t layers) {
  DeepseekConfig c = CommonConfig();
  c.vocab = 1024;
  c.hidden = 128;
  c.layers = layers == 0 ? 5 : layers;
  c.heads = 8;
  c.head_dim = 128;
  c.q_rank = 64;
  c.o_groups = 4;
  c.o_rank = 32;
  c.window = 32;
  c.expert_inner = 128;
  c.experts = 16;
  c.experts_per_token = 2;
  c.hash_layers = 1;
  c.index_heads = 4;
  c.index_dim = 64;
  c.index_top_k = 32;
  c.dspark.markov_rank = 32;
  return c;
}

// A rank's share: heads with their output groups, the inner columns of every expert, the vocabulary. The latent projections,
// the indexer and the compressors are on every rank.
Status CutForRank(int32_t tp, DeepseekConfig* c) {
  const auto cut = [&](const char* what, int32_t multiple, int32_t* value) {
    if (tp < 1 || *value % (tp * multiple) != 0) {
      return InvalidArgument("tp is " + std::to_string(tp) + ", which does not divide the " +
                             std::to_string(*value) + " " + what + " of the model shape");
    }
    *value /= tp;
    return Status::Ok();
  };
  FIRESTEEL_RETURN_IF_ERROR(cut("heads", 1, &c->heads));
  FIRESTEEL_RETURN_IF_ERROR(cut("output groups", 1, &c->o_groups));
  FIRESTEEL_RETURN_IF_ERROR(cut("columns of an expert", 32, &c->expert_inner));
  return cut("tokens of the vocabulary", 1, &c->vocab);
}

}  // namespace

Result<LoadedModel> MakeSyntheticModel(const SyntheticShape& shape, const EngineOptions& options,
                                       Device& device, DeviceArena& arena) {
  if (shape.name != "v4-flash" && shape.name != "tiny") {
    return InvalidArgument("model-shape is '" + shape.name + "', needs 'v4-flash' or 'tiny'");
  }
  if (shape.layers < 0 || shape.layers > 1024) {
    return InvalidArgument("layers is " + std::to_string(shape.layers) + ", needs 0..1024");
  }
  DeepseekConfig config = shape.name == "tiny" ? Tiny(shape.layers) : V4Flash(shape.layers);
  FIRESTEEL_RETURN_IF_ERROR(CutForRank(shape.tp, &config));
  config.ratios = V4Ratios(config.layers);
  SetDspark(3, &config);
  LoadedModel model;
  model.config.architecture = "DeepseekV4ForCausalLM";
  FIRESTEEL_RETURN_IF_ERROR(CreateSyntheticDeepseek(config, options, device, arena, &model));
  return model;
}

void FillSyntheticCaches(const LoadedModel& model, Device& device, int32_t context_blocks,
                         int32_t window_blocks) {
  const auto fill = [&](std::span<const DeepseekLayer> layers) {
    for (const DeepseekLayer& layer : layers) {
      const BlockCaches& caches = layer.caches();
      FillPages(device, caches.window, window_blocks);
      for (const KvPages* pages : {&caches.entries, &caches.index_keys}) {
        if (pages->data != nullptr) FillPages(device, *pages, context_blocks);
      }
    }
  };
  fill(static_cast<const DeepseekModel&>(*model.target).layers());
  if (model.drafter->spec().draft_length > 0) {
    fill(static_cast<const DsparkDrafter&>(*model.drafter).stages());
  }
}

}  // namespace firesteel
