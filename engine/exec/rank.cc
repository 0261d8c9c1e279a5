#include "engine/exec/rank.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/exec/backend.h"
#include "engine/exec/graph_runner.h"
#include "engine/exec/rank_memory.h"
#include "engine/exec/rank_state.h"
#include "engine/exec/step_timer.h"
#include "engine/plan/shape_table.h"
#include "kernels/core/parallel_for.h"

namespace firesteel {

Result<std::unique_ptr<RankState>> RankState::Create(const EngineOptions& options) {
  FIRESTEEL_RETURN_IF_ERROR(options.Validate());
  FIRESTEEL_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                             OpenDevice(options.device, options.threads));
  return CreateOn(std::move(device), options);
}

Result<std::unique_ptr<RankState>> RankState::CreateOn(std::unique_ptr<Device> device,
                                                       const EngineOptions& options) {
  return CreateWith(std::move(device), options,
                    [&](Device& d, DeviceArena& arena) { return LoadModel(options, d, arena); });
}

Result<std::unique_ptr<RankState>> RankState::CreateWith(std::unique_ptr<Device> device,
                                                         const EngineOptions& options,
                                                         const ModelSource& source) {
  auto state = std::unique_ptr<RankState>(new RankState());
  state->device_ = std::move(device);
  state->arena_ = std::make_unique<DeviceArena>(*state->device_);
  FIRESTEEL_ASSIGN_OR_RETURN(state->model_, source(*state->device_, *state->arena_));
  TargetModel& target = *state->model_.target;
  Drafter& drafter = *state->model_.drafter;
  FIRESTEEL_RETURN_IF_ERROR(state->arena_->status());
  FIRESTEEL_ASSIGN_OR_RETURN(const MemoryPlan memory,
                             PlanRankMemory(options, *state->device_, target, drafter));
  state->buffers_ =
      BindMemory(*state->arena_, memory, !state->device_->reads_host_memory(), target, drafter);
  FIRESTEEL_RETURN_IF_ERROR(state->arena_->status());
  state->program_ = std::make_unique<StepProgram>(
      StepProgram{*state->device_, *state->buffers_, target, drafter});
  state->graphs_ = std::make_unique<GraphRunner>(*state->program_);

  const ShapeTable shapes(memory.plan, drafter.spec().draft_length, options.graphs);
  FIRESTEEL_RETURN_IF_ERROR(state->CaptureAll(shapes.CapturedShapes()));
  state->arena_->Seal();

  RankInfo& info = state->info_;
  info.model.architecture = state->model_.config.architecture;
  info.model.vocab_size = target.spec().vocab;
  info.model.max_model_len = memory.max_model_len;
  info.model.eos_tokens = state->model_.config.eos_tokens;
  info.model.drafter = drafter.spec().draft_length > 0 ? options.drafter : "none";
  info.model.draft_length = drafter.spec().draft_length;
  info.model.device = DeviceKindName(options.device);
  info.model.cache_dtype = CacheDtypeName(options.cache_dtype);
  info.model.activations = ActivationDtypeName(options.activations);
  info.model.verification = "token-wise";
  info.model.max_live_requests = options.max_sequences + options.max_queue;
  info.model.threads = options.threads > 0 ? options.threads : DefaultThreads();
  info.cache = memory.cache;
  info.num_blocks = memory.num_blocks;
  info.limits = memory.plan;
  info.draft_length = drafter.spec().draft_length;
  if (options.draft_length == kDraftLengthAuto && info.draft_length > 0) {
    FIRESTEEL_RETURN_IF_ERROR(state->MeasureCosts());
  }
  return state;
}

Status RankState::CaptureAll(std::span<const StepShape> shapes) {
  // The plan buffer is still zero, so nothing is live in these steps. What a device sets up at the first launch of a
  // kernel is set up here: during a capture it might not be allowed to.
  for (const StepShape& shape : shapes) EnqueueStep(shape, *program_, device_->stream());
  // Weights and tables have arrived, or loading them failed.
  FIRESTEEL_RETURN_IF_ERROR(device_->stream().Synchronize());
  for (const StepShape& shape : shapes) FIRESTEEL_RETURN_IF_ERROR(graphs_->Capture(shape));
  return device_->stream().Synchronize();
}

Status RankState::MeasureCosts() {
  constexpr int32_t kContext = 256;
  constexpr int32_t kRepeats = 5;
  StepCosts costs;
  costs.draft_length = info_.draft_length;
  const int32_t context =
      std::min(kContext, info_.model.max_model_len - 2 * info_.cache.lookahead_tokens);
  StepTimer timer(*this, std::max(context, 1));
  for (int32_t sequences = 1; sequences <= info_.limits.max_sequences; sequences *= 4) {
    costs.sequences.push_back(sequences);
    for (int32_t drafts = 0; drafts <= info_.draft_length; ++drafts) {
      FIRESTEEL_ASSIGN_OR_RETURN(const StepTimer::Sample sample,
                                 timer.Time(sequences, drafts, kRepeats));
      costs.target_us.push_back(sample.target_us);
      if (drafts == info_.draft_length) {
        costs.propose_us.push_back(std::max(0.0, sample.step_us - sample.target_us));
      }
    }
  }
  info_.costs = std::move(costs);
  return Status::Ok();
}

RankState::~RankState() = default;

Status RankState::RunStep(const StepPlan& plan, std::span<SequenceResult> results,
                          std::span<LogprobRecord> logprobs) {
  Stream& stream = device_->stream();
  const std::span<const std::byte> bytes = plan.bytes();
  stream.CopyToDevice(buffers_->plan(), bytes.data(), static_cast<int64_t>(bytes.size()));
  graphs_->Run(plan.shape());
  const int64_t count = plan.header().num_sequences;
  stream.CopyToHost(results.data(), buffers_->meta().results,
                    count * static_cast<int64_t>(sizeof(SequenceResult)));
  if (plan.header().wants_logprobs != 0) {
    stream.CopyToHost(logprobs.data(), buffers_->meta().logprobs,
                      plan.header().num_logit_rows * static_cast<int64_t>(sizeof(LogprobRecord)));
  }
  return stream.Synchronize();
}

void RankState::RewindForTiming(std::span<const int32_t> lengths) {
  device_->stream().CopyToDevice(buffers_->meta().slots.length, lengths.data(),
                                 static_cast<int64_t>(lengths.size_bytes()));
}

namespace {

class Rank final : public RankExecutor {
 public:
  explicit Rank(std::unique_ptr<RankState> state) : state_(std::move(state)) {}
  const RankInfo& info() const override { return state_->info(); }
  Status RunStep(const StepPlan& plan, std::span<SequenceResult> results,
                 std::span<LogprobRecord> logprobs) override {
    return state_->RunStep(plan, results, logprobs);
  }

 private:
  std::unique_ptr<RankState> state_;
};

}  // namespace

Result<std::unique_ptr<RankExecutor>> CreateRank(const EngineOptions& options) {
  FIRESTEEL_RETURN_IF_ERROR(options.Validate());
  FIRESTEEL_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                             OpenDevice(options.device, options.threads));
  return CreateRankOn(std::move(device), options);
}

Result<std::unique_ptr<RankExecutor>> CreateRankOn(std::unique_ptr<Device> device,
                                                   const EngineOptions& options) {
  FIRESTEEL_ASSIGN_OR_RETURN(std::unique_ptr<RankState> state,
                             RankState::CreateOn(std::move(device), options));
  return std::unique_ptr<RankExecutor>(std::make_unique<Rank>(std::move(state)));
}

}  // namespace firesteel
