#include "engine/api/step_bench.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "engine/exec/backend.h"
#include "engine/exec/machine_ceilings.h"
#include "engine/exec/memory_plan.h"
#include "engine/exec/rank_state.h"
#include "engine/exec/step_parts_timer.h"
#include "engine/models/synthetic_model.h"
#include "kernels/core/math.h"

namespace firesteel {
namespace {

bool IsSynthetic(const StepBenchOptions& bench) { return !bench.synthetic.name.empty(); }

Status CheckBench(const StepBenchOptions& bench, const RankInfo& info) {
  const int32_t longest = info.model.max_model_len - 2 * info.cache.lookahead_tokens;
  for (const int32_t context : bench.contexts) {
    if (context < 1 || context > longest) {
      return InvalidArgument("context is " + std::to_string(context) + ", needs 1.." +
                             std::to_string(longest));
    }
  }
  for (const int32_t sequences : bench.sequences) {
    if (sequences < 1 || sequences > info.limits.max_sequences) {
      return InvalidArgument("sequences is " + std::to_string(sequences) + ", needs 1.." +
                             std::to_string(info.limits.max_sequences) + " (max-sequences)");
    }
  }
  for (const int32_t drafts : bench.drafts) {
    if (drafts < 0 || drafts > info.draft_length) {
      return InvalidArgument("drafts is " + std::to_string(drafts) + ", needs 0.." +
                             std::to_string(info.draft_length) + " (draft-length)");
    }
  }
  return Status::Ok();
}

// On a device of its own that is gone before the model is loaded: a CPU's workers are not to wait beside others.
Result<StepBenchMachine> MeasureMachine(const EngineOptions& options) {
  FIRESTEEL_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device,
                             OpenDevice(options.device, options.threads));
  StepBenchMachine machine;
  machine.device = device->Describe();
  FIRESTEEL_ASSIGN_OR_RETURN(machine.copy_gbps, MeasureCopyGbps(*device));
  FIRESTEEL_ASSIGN_OR_RETURN(machine.gflops, MeasureGflops(*device));
  return machine;
}

// What a checkpoint and its user decide otherwise: caches and rows hold what the timed steps need, and nothing is shared or
// prefilled.
EngineOptions FittedOptions(const EngineOptions& options, const StepBenchOptions& bench) {
  EngineOptions fitted = options;
  fitted.model_dir = bench.synthetic.name;
  fitted.prefix_cache = false;
  fitted.max_batched_tokens = 1;
  fitted.max_model_len =
      *std::max_element(bench.contexts.begin(), bench.contexts.end()) + 4 * (kMaxDraftLength + 1);
  return fitted;
}

// Blocks of its own for every sequence, or as many as there is memory for.
int64_t FittedCacheTokens(const EngineOptions& options, const StepBenchOptions& bench,
                          const TargetModel& target) {
  const int64_t block_bytes = target.context_bytes_per_block(kContextBlockTokens);
  const int64_t per_sequence = CeilDiv(options.max_model_len, kContextBlockTokens) + 1;
  const int64_t wanted = per_sequence * options.max_sequences;
  const int64_t afforded = block_bytes == 0 ? wanted : bench.cache_bytes / block_bytes;
  return std::max(per_sequence, std::min(wanted, afforded)) * kContextBlockTokens;
}

Result<std::unique_ptr<RankState>> CreateState(const EngineOptions& options,
                                               const StepBenchOptions& bench) {
  if (!IsSynthetic(bench)) return RankState::Create(options);
  EngineOptions fitted = FittedOptions(options, bench);
  FIRESTEEL_RETURN_IF_ERROR(fitted.Validate());
  FIRESTEEL_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                             OpenDevice(fitted.device, fitted.threads));
  // The memory plan reads `fitted` when the model, which says what a block costs, is there.
  const auto make = [&](Device& d, DeviceArena& arena) -> Result<LoadedModel> {
    FIRESTEEL_ASSIGN_OR_RETURN(LoadedModel model,
                               MakeSyntheticModel(bench.synthetic, fitted, d, arena));
    fitted.cache_tokens = FittedCacheTokens(fitted, bench, *model.target);
    return model;
  };
  FIRESTEEL_ASSIGN_OR_RETURN(std::unique_ptr<RankState> state,
                             RankState::CreateWith(std::move(device), fitted, make));
  FillSyntheticCaches(state->model(), state->device(), state->info().num_blocks[kContextGroup],
                      state->info().num_blocks[kWindowGroup]);
  FIRESTEEL_RETURN_IF_ERROR(state->device().stream().Synchronize());
  return state;
}

StepBenchPart PartOf(double us, const WeightTraffic& weights, int64_t chosen_experts,
                     int64_t cache_bytes, double copy_gbps) {
  StepBenchPart part;
  part.us = us;
  part.weight_bytes = weights.dense_bytes;
  if (weights.expert_layers > 0) {
    part.weight_bytes += chosen_experts * (weights.expert_bytes / weights.expert_layers);
    part.distinct_experts =
        static_cast<double>(chosen_experts) / static_cast<double>(weights.expert_layers);
  }
  part.cache_bytes = cache_bytes;
  part.floor_us = static_cast<double>(part.weight_bytes + cache_bytes) / copy_gbps * 1e-3;
  part.ratio = us / part.floor_us;
  return part;
}

StepBenchRow RowOf(const RankState& state, const StepPartsTimer::Parts& parts, int32_t sequences,
                   int32_t drafts, int32_t context, const StepBenchMachine& machine) {
  StepBenchRow row;
  row.sequences = sequences;
  row.drafts = drafts;
  row.context = context;
  row.cache_share = parts.cache_share;
  row.step_us = parts.step_us;
  row.prepare_us = parts.prepare_us;
  const int32_t rows = sequences * (drafts + 1);
  const TargetModel& target = *state.model().target;
  const WeightTraffic weights = target.weight_traffic();
  row.target = PartOf(parts.target_us, weights, parts.target_experts,
                      target.cache_traffic(sequences, rows, context), machine.copy_gbps);
  if (state.info().draft_length > 0) {
    const Drafter& drafter = *state.model().drafter;
    row.draft = PartOf(parts.draft_us, drafter.weight_traffic(), parts.draft_experts,
                       drafter.cache_traffic(sequences, context), machine.copy_gbps);
  }
  if (machine.gflops > 0.0) {
    const double flop = 2.0 * rows *
                        static_cast<double>(weights.dense_parameters +
                                            weights.expert_parameters * weights.experts_per_row);
    row.flop_share = flop / (row.target.us * 1e3) / machine.gflops;
  }
  return row;
}

}  // namespace

Status RunStepBench(const EngineOptions& options, const StepBenchOptions& bench,
                    const StepBenchSink& sink) {
  FIRESTEEL_ASSIGN_OR_RETURN(StepBenchMachine machine, MeasureMachine(options));
  FIRESTEEL_ASSIGN_OR_RETURN(const std::unique_ptr<RankState> state, CreateState(options, bench));
  const RankInfo& info = state->info();
  FIRESTEEL_RETURN_IF_ERROR(CheckBench(bench, info));
  machine.threads = info.model.threads;
  machine.cache_dtype = info.model.cache_dtype;
  machine.activations = info.model.activations;
  sink.machine(machine);
  std::vector<int32_t> drafts = bench.drafts;
  if (drafts.empty()) {
    for (int32_t k = IsSynthetic(bench) ? info.draft_length : 0; k <= info.draft_length; ++k)
      drafts.push_back(k);
  }
  for (const int32_t context : bench.contexts) {
    StepPartsTimer timer(*state, context, IsSynthetic(bench));
    for (const int32_t sequences : bench.sequences) {
      for (const int32_t k : drafts) {
        FIRESTEEL_ASSIGN_OR_RETURN(const StepPartsTimer::Parts parts,
                                   timer.Time(sequences, k, bench.repeats));
        sink.row(RowOf(*state, parts, sequences, k, context, machine));
      }
    }
  }
  return Status::Ok();
}

}  // namespace firesteel
