#include "engine/models/registry.h"

#include "engine/models/deepseek/deepseek_factory.h"

namespace firesteel {
namespace {

struct Entry {
  const char* architecture;
  ModelFactory factory;
};

constexpr Entry kModels[] = {
    {"DeepseekV4ForCausalLM", CreateDeepseek},
};

}  // namespace

Result<ModelFactory> FindModelFactory(const std::string& architecture) {
  std::string known;
  for (const Entry& entry : kModels) {
    if (architecture == entry.architecture) return entry.factory;
    known += (known.empty() ? "" : ", ") + std::string(entry.architecture);
  }
  return Unsupported("architecture is '" + architecture + "', needs one of: " + known);
}

Result<LoadedModel> LoadModel(const EngineOptions& options, Device& device, DeviceArena& arena) {
  LoadedModel model;
  FIRESTEEL_ASSIGN_OR_RETURN(model.config, ReadModelConfig(options.model_dir));
  FIRESTEEL_ASSIGN_OR_RETURN(const ModelFactory factory,
                             FindModelFactory(model.config.architecture));
  FIRESTEEL_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(options.model_dir));
  model.checkpoint = std::make_unique<Checkpoint>(std::move(checkpoint));
  FIRESTEEL_RETURN_IF_ERROR(factory(options, device, arena, &model));
  return model;
}

}  // namespace firesteel
