#include "engine/exec/step_timer.h"

#include <algorithm>
#include <chrono>

#include "kernels/core/math.h"

namespace firesteel {

StepTimer::StepTimer(RankState& state, int32_t context)
    : state_(state),
      context_(context),
      shapes_(state.info().limits, state.info().draft_length, state.graphs_enabled()),
      plan_(state.info().limits),
      lengths_(static_cast<size_t>(state.info().limits.max_sequences), context),
      results_(static_cast<size_t>(state.info().limits.max_sequences)) {}

Status StepTimer::Prefill(int32_t sequences) {
  const RankInfo& info = state_.info();
  for (; prefilled_ < sequences; ++prefilled_) {
    for (int32_t start = 0; start < context_;) {
      plan_.Clear();
      PlanHeader& header = plan_.header();
      if (start == 0) {
        header.num_new_slots = 1;
        plan_.new_slots()[0] = PlanNewSlot{prefilled_, 0, -1, {}};
        for (size_t g = 0; g < info.cache.groups.size(); ++g) {
          const int32_t blocks = CeilDiv(context_ + 2 * info.cache.lookahead_tokens,
                                         info.cache.groups[g].block_tokens);
          for (int32_t i = 0; i < blocks && header.num_appends < info.limits.max_appends; ++i) {
            // Timing needs real memory, not disjoint contents: sequences may share blocks when the pool is small.
            const int32_t block = (prefilled_ * blocks + i) % info.num_blocks[g];
            plan_.appends()[static_cast<size_t>(header.num_appends++)] =
                PlanAppend{static_cast<int32_t>(g), prefilled_, i, block};
          }
        }
      }
      const int32_t rows = std::min(info.limits.max_rows, context_ - start);
      header.num_sequences = 1;
      header.num_rows = rows;
      plan_.sequences()[0] = PlanSequence{prefilled_, 0, rows, start, -1, 0, 0, 0};
      for (int32_t i = 0; i < rows; ++i) {
        // Spread ids so that routing by token and by score sees different rows.
        plan_.tokens()[static_cast<size_t>(i)] = (start + i) * 31 % info.model.vocab_size;
      }
      plan_.set_shape(StepShape{1, rows, 0, false});
      FIRESTEEL_RETURN_IF_ERROR(state_.RunStep(plan_, results_));
      start += rows;
    }
  }
  return Status::Ok();
}

Result<double> StepTimer::TimeOnce(int32_t sequences, int32_t drafts, bool propose) {
  plan_.Clear();
  PlanHeader& header = plan_.header();
  header.num_sequences = sequences;
  const int32_t rows = drafts + 1;
  header.num_rows = sequences * rows;
  header.num_logit_rows = header.num_rows;
  // As the scheduler does while drafting does not pay.
  header.skips_draft_commit = drafts == 0 && !propose ? 1 : 0;
  for (int32_t s = 0; s < sequences; ++s) {
    plan_.sequences()[static_cast<size_t>(s)] =
        PlanSequence{s, s * rows, rows, context_, drafts, s * rows, rows, propose ? 1 : 0};
  }
  plan_.set_shape(shapes_.ShapeFor({sequences, header.num_rows, header.num_logit_rows, true}));
  state_.RewindForTiming(std::span(lengths_).first(static_cast<size_t>(sequences)));
  const auto start = std::chrono::steady_clock::now();
  FIRESTEEL_RETURN_IF_ERROR(state_.RunStep(plan_, results_));
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

Result<double> StepTimer::Median(int32_t sequences, int32_t drafts, bool propose, int32_t repeats) {
  std::vector<double> times;
  times.reserve(static_cast<size_t>(repeats));
  for (int32_t i = 0; i < repeats + 1; ++i) {
    FIRESTEEL_ASSIGN_OR_RETURN(const double us, TimeOnce(sequences, drafts, propose));
    if (i > 0) times.push_back(us);  // the first run warms caches
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<size_t>(repeats / 2)];
}

Result<StepTimer::Sample> StepTimer::Time(int32_t sequences, int32_t drafts, int32_t repeats) {
  FIRESTEEL_RETURN_IF_ERROR(Prefill(sequences));
  Sample sample{};
  FIRESTEEL_ASSIGN_OR_RETURN(sample.target_us, Median(sequences, drafts, false, repeats));
  sample.step_us = sample.target_us;
  if (state_.info().draft_length > 0) {
    FIRESTEEL_ASSIGN_OR_RETURN(sample.step_us, Median(sequences, drafts, true, repeats));
  }
  return sample;
}

}  // namespace firesteel
