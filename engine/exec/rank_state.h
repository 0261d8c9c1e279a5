// Everything one rank owns: device, weights, caches, step buffers and graphs. Used by the rank thread alone; tests drive
// it directly.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "engine/exec/graph_runner.h"
#include "engine/exec/rank.h"
#include "engine/exec/step_buffers.h"
#include "engine/exec/step_program.h"
#include "engine/models/loaded_model.h"
#include "kernels/core/arena.h"
#include "kernels/core/device.h"

namespace firesteel {

class RankState {
 public:
  // Opens options.device.
  static Result<std::unique_ptr<RankState>> Create(const EngineOptions& options);
  // The same on a device that is open already.
  static Result<std::unique_ptr<RankState>> CreateOn(std::unique_ptr<Device> device,
                                                     const EngineOptions& options);
  // The same with a model from elsewhere than options.model_dir.
  using ModelSource = std::function<Result<LoadedModel>(Device&, DeviceArena&)>;
  static Result<std::unique_ptr<RankState>> CreateWith(std::unique_ptr<Device> device,
                                                       const EngineOptions& options,
                                                       const ModelSource& source);
  ~RankState();

  const RankInfo& info() const { return info_; }
  // As RankExecutor::RunStep. `logprobs` may be empty for a plan that wants none.
  Status RunStep(const StepPlan& plan, std::span<SequenceResult> results,
                 std::span<LogprobRecord> logprobs = {});

  // Puts the first slots back to these committed lengths; only for timing, when nothing is served. Enqueued, not waited for.
  void RewindForTiming(std::span<const int32_t> lengths);
  bool graphs_enabled() const { return graphs_->num_graphs() > 0; }

  StepProgram& program() { return *program_; }
  StepBuffers& buffers() { return *buffers_; }
  TargetModel& target() { return *model_.target; }
  Drafter& drafter() { return *model_.drafter; }
  Device& device() { return *device_; }
  DeviceArena& arena() { return *arena_; }
  const LoadedModel& model() const { return model_; }

 private:
  RankState() = default;
  // Runs each shape once with nothing live, then captures it.
  Status CaptureAll(std::span<const StepShape> shapes);
  Status MeasureCosts();

  // Destroyed in reverse: buffers return to the device before it goes.
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceArena> arena_;
  LoadedModel model_;
  std::unique_ptr<StepBuffers> buffers_;
  std::unique_ptr<StepProgram> program_;
  std::unique_ptr<GraphRunner> graphs_;
  RankInfo info_;
};

}  // namespace firesteel
