#include "engine/exec/step_parts_timer.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "engine/exec/memory_plan.h"
#include "kernels/core/launch.h"
#include "kernels/core/math.h"

namespace firesteel {
namespace {

using Clock = std::chrono::steady_clock;

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double TakeMedian(std::vector<double> samples) {
  const auto middle = samples.begin() + static_cast<int64_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

// Replays between two waits: on a GPU the host's part of one hides behind the work of another.
int32_t ReplaysPerSample(const Device& device) { return device.reads_host_memory() ? 1 : 4; }

// Metadata takes so little time that several passes share a graph.
constexpr int32_t kPreparesPerGraph = 16;

// Where the layers of one model leave their experts.
class ExpertTrace {
 public:
  ExpertTrace(DeviceArena& arena, const WeightTraffic& traffic, int64_t rows)
      : chosen_(rows * traffic.experts_per_row) {
    for (int32_t l = 0; l < traffic.expert_layers; ++l) {
      layers_.push_back(arena.Carve<int32_t>("expert trace", chosen_));
    }
  }
  std::span<int32_t* const> layers() const { return layers_; }

  // Distinct experts, summed over the layers.
  Result<int64_t> Count(Stream& stream) const {
    int64_t distinct = 0;
    std::vector<int32_t> chosen(static_cast<size_t>(chosen_));
    for (const int32_t* layer : layers_) {
      stream.CopyToHost(chosen.data(), layer, chosen_ * static_cast<int64_t>(sizeof(int32_t)));
      FIRESTEEL_RETURN_IF_ERROR(stream.Synchronize());
      distinct += static_cast<int64_t>(std::set<int32_t>(chosen.begin(), chosen.end()).size());
    }
    return distinct;
  }

 private:
  int64_t chosen_;
  std::vector<int32_t*> layers_;
};

}  // namespace

StepPartsTimer::StepPartsTimer(RankState& state, int32_t context, bool synthetic)
    : state_(state),
      context_(context),
      synthetic_(synthetic),
      prompts_(state, context),
      shapes_(state.info().limits, state.info().draft_length, state.graphs_enabled()),
      plan_(state.info().limits),
      lengths_(static_cast<size_t>(state.info().limits.max_sequences), context),
      last_tokens_(lengths_.size()),
      draft_tokens_(lengths_.size() * static_cast<size_t>(state.info().draft_length)),
      results_(lengths_.size()) {}

Status StepPartsTimer::MapContext(int32_t sequences) {
  const RankInfo& info = state_.info();
  StepProgram& program = state_.program();
  Stream& stream = program.device.stream();
  const StepShape shape{1, 1, 1, false};
  const auto send = [&] {
    stream.CopyToDevice(program.buffers.plan(), plan_.bytes().data(),
                        static_cast<int64_t>(plan_.bytes().size()));
    Launch(stream, program.device.kernels().step_prepare, program.buffers.PrepareArgs(shape));
    plan_.Clear();
    return stream.Synchronize();
  };
  for (; mapped_ < sequences; ++mapped_) {
    plan_.Clear();
    PlanHeader& header = plan_.header();
    header.num_new_slots = 1;
    plan_.new_slots()[0] = PlanNewSlot{mapped_, context_, -1, {}};
    for (size_t g = 0; g < info.cache.groups.size(); ++g) {
      const CacheGroupSpec& group = info.cache.groups[g];
      const int32_t end = CeilDiv(context_ + 2 * info.cache.lookahead_tokens, group.block_tokens);
      const int32_t first =
          group.retained_tokens == 0
              ? 0
              : std::max(0, context_ - group.retained_tokens) / group.block_tokens;
      for (int32_t i = first; i < end; ++i) {
        if (header.num_appends == info.limits.max_appends) FIRESTEEL_RETURN_IF_ERROR(send());
        const auto block = static_cast<int32_t>((int64_t{mapped_} * (end - first) + i - first) %
                                                info.num_blocks[g]);
        plan_.appends()[static_cast<size_t>(header.num_appends++)] =
            PlanAppend{static_cast<int32_t>(g), mapped_, i, block};
      }
    }
    FIRESTEEL_RETURN_IF_ERROR(send());
  }
  return Status::Ok();
}

void StepPartsTimer::FillPlan(int32_t sequences, int32_t drafts) {
  plan_.Clear();
  PlanHeader& header = plan_.header();
  const int32_t rows = drafts + 1;
  header.num_sequences = sequences;
  header.num_rows = sequences * rows;
  header.num_logit_rows = header.num_rows;
  for (int32_t s = 0; s < sequences; ++s) {
    plan_.sequences()[static_cast<size_t>(s)] =
        PlanSequence{s, s * rows, rows, context_, drafts, s * rows, rows, 1};
  }
  plan_.set_shape(shapes_.ShapeFor({sequences, header.num_rows, header.num_logit_rows, true}));
}

Status StepPartsTimer::DrawTokens(int32_t sequences) {
  if (synthetic_) {
    std::minstd_rand random(1);
    const auto vocab = static_cast<uint32_t>(state_.info().model.vocab_size);
    const auto draw = [&] { return static_cast<int32_t>(random() % vocab); };
    std::generate(last_tokens_.begin(), last_tokens_.end(), draw);
    std::generate(draft_tokens_.begin(), draft_tokens_.end(), draw);
    return Status::Ok();
  }
  // What the model itself goes on with behind the prompts.
  state_.RewindForTiming(std::span(lengths_).first(static_cast<size_t>(sequences)));
  FIRESTEEL_RETURN_IF_ERROR(state_.RunStep(plan_, results_));
  const SlotTables& slots = state_.buffers().meta().slots;
  Stream& stream = state_.device().stream();
  stream.CopyToHost(last_tokens_.data(), slots.last_token,
                    static_cast<int64_t>(last_tokens_.size() * sizeof(int32_t)));
  stream.CopyToHost(draft_tokens_.data(), slots.draft_tokens,
                    static_cast<int64_t>(draft_tokens_.size() * sizeof(int32_t)));
  return stream.Synchronize();
}

void StepPartsTimer::Rewind(int32_t sequences) {
  const SlotTables& slots = state_.buffers().meta().slots;
  Stream& stream = state_.device().stream();
  state_.RewindForTiming(std::span(lengths_).first(static_cast<size_t>(sequences)));
  const int64_t bytes = int64_t{sequences} * static_cast<int64_t>(sizeof(int32_t));
  stream.CopyToDevice(slots.last_token, last_tokens_.data(), bytes);
  stream.CopyToDevice(slots.draft_tokens, draft_tokens_.data(), bytes * slots.draft_length);
}

Result<std::unique_ptr<Graph>> StepPartsTimer::Capture(
    const std::function<void(StepContext&)>& enqueue) {
  StepProgram& program = state_.program();
  StepContext context{program.device.stream(), program.device.kernels(), plan_.shape(),
                      program.buffers.meta()};
  // Once eagerly: what a device sets up at a kernel's first launch is not allowed in a capture.
  enqueue(context);
  FIRESTEEL_RETURN_IF_ERROR(context.stream.Synchronize());
  context.stream.BeginCapture();
  enqueue(context);
  return context.stream.EndCapture();
}

Result<double> StepPartsTimer::Median(Graph& graph, int32_t sequences, bool rewind, int32_t inner,
                                      int32_t repeats) {
  Stream& stream = state_.device().stream();
  std::vector<double> samples;
  for (int32_t r = 0; r < repeats + 1; ++r) {
    FIRESTEEL_RETURN_IF_ERROR(stream.Synchronize());
    const Clock::time_point start = Clock::now();
    for (int32_t i = 0; i < inner; ++i) {
      if (rewind) Rewind(sequences);
      graph.Replay(stream);
    }
    FIRESTEEL_RETURN_IF_ERROR(stream.Synchronize());
    if (r > 0) samples.push_back(MicrosecondsSince(start) / inner);  // the first warms caches
  }
  return TakeMedian(std::move(samples));
}

Result<double> StepPartsTimer::MedianStep(int32_t sequences, int32_t repeats) {
  std::vector<double> samples;
  for (int32_t r = 0; r < repeats + 1; ++r) {
    Rewind(sequences);
    FIRESTEEL_RETURN_IF_ERROR(state_.device().stream().Synchronize());
    const Clock::time_point start = Clock::now();
    FIRESTEEL_RETURN_IF_ERROR(state_.RunStep(plan_, results_));
    if (r > 0) samples.push_back(MicrosecondsSince(start));
  }
  return TakeMedian(std::move(samples));
}

Status StepPartsTimer::TimeHalves(int32_t sequences, int32_t repeats, Parts* parts) {
  StepProgram& program = state_.program();
  const int32_t inner = ReplaysPerSample(program.device);
  TargetOut out;
  Rewind(sequences);
  FIRESTEEL_ASSIGN_OR_RETURN(
      const std::unique_ptr<Graph> target,
      Capture([&](StepContext& context) { out = EnqueueTarget(context, program); }));
  FIRESTEEL_ASSIGN_OR_RETURN(parts->target_us, Median(*target, sequences, true, inner, repeats));
  const bool drafts = state_.info().draft_length > 0;
  if (drafts) {
    // It reads what verification left and writes nothing that it reads.
    FIRESTEEL_ASSIGN_OR_RETURN(
        const std::unique_ptr<Graph> draft,
        Capture([&](StepContext& context) { EnqueueDraft(context, program, out); }));
    FIRESTEEL_ASSIGN_OR_RETURN(parts->draft_us, Median(*draft, sequences, false, inner, repeats));
  }
  FIRESTEEL_ASSIGN_OR_RETURN(const std::unique_ptr<Graph> prepare, Capture([&](StepContext& c) {
                               for (int32_t i = 0; i < kPreparesPerGraph; ++i) {
                                 Launch(c.stream, c.ops.step_prepare,
                                        program.buffers.PrepareArgs(c.shape));
                                 program.drafter.EnqueuePrepare(c);
                               }
                             }));
  FIRESTEEL_ASSIGN_OR_RETURN(const double prepare_us,
                             Median(*prepare, sequences, false, inner, repeats));
  parts->prepare_us = prepare_us / kPreparesPerGraph;
  return Status::Ok();
}

Status StepPartsTimer::CountExperts(int32_t sequences, Parts* parts) {
  TargetModel& target = state_.target();
  Drafter& drafter = state_.drafter();
  DeviceArena arena(state_.device());
  const ExpertTrace of_target(arena, target.weight_traffic(), plan_.header().num_rows);
  const ExpertTrace of_draft(arena, drafter.weight_traffic(),
                             int64_t{sequences} * drafter.spec().block_rows);
  StepShape eager = plan_.shape();
  eager.captured = false;
  plan_.set_shape(eager);
  target.set_expert_trace(of_target.layers());
  drafter.set_expert_trace(of_draft.layers());
  Rewind(sequences);
  const Status status = state_.RunStep(plan_, results_);
  target.set_expert_trace({});
  drafter.set_expert_trace({});
  FIRESTEEL_RETURN_IF_ERROR(status);
  Stream& stream = state_.device().stream();
  FIRESTEEL_ASSIGN_OR_RETURN(parts->target_experts, of_target.Count(stream));
  FIRESTEEL_ASSIGN_OR_RETURN(parts->draft_experts, of_draft.Count(stream));
  return Status::Ok();
}

Result<StepPartsTimer::Parts> StepPartsTimer::Time(int32_t sequences, int32_t drafts,
                                                   int32_t repeats) {
  FIRESTEEL_RETURN_IF_ERROR(synthetic_ ? MapContext(sequences) : prompts_.Prefill(sequences));
  FillPlan(sequences, drafts);
  FIRESTEEL_RETURN_IF_ERROR(DrawTokens(sequences));
  Parts parts;
  const int64_t blocks = int64_t{sequences} *
                         CeilDiv(context_, state_.info().cache.groups[kContextGroup].block_tokens);
  parts.cache_share = std::min(1.0, static_cast<double>(state_.info().num_blocks[kContextGroup]) /
                                        static_cast<double>(blocks));
  FIRESTEEL_ASSIGN_OR_RETURN(parts.step_us, MedianStep(sequences, repeats));
  for (int32_t s = 0; s < sequences; ++s) {
    if (results_[static_cast<size_t>(s)].not_finite != 0) {
      return DataLoss("sequence " + std::to_string(s) +
                      " of the timed step has logits that are not finite");
    }
  }
  FIRESTEEL_RETURN_IF_ERROR(TimeHalves(sequences, repeats, &parts));
  FIRESTEEL_RETURN_IF_ERROR(CountExperts(sequences, &parts));
  return parts;
}

}  // namespace firesteel
