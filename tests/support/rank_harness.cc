#include "tests/support/rank_harness.h"

#include <algorithm>
#include <utility>

#include "engine/drafters/dspark/dspark_drafter.h"
#include "kernels/core/float_codec.h"
#include "kernels/core/launch.h"
#include "kernels/core/math.h"
#include "tests/support/device_memory.h"

namespace firesteel {

namespace {

std::unique_ptr<RankState> ValueOrAbort(Result<std::unique_ptr<RankState>> state) {
  FIRESTEEL_CHECK(state.ok(), state.status().ToString());
  return std::move(state).value();
}

}  // namespace

RankHarness::RankHarness(const EngineOptions& options)
    : state_(ValueOrAbort(RankState::Create(options))), plan_(state_->info().limits) {}

RankHarness::RankHarness(const EngineOptions& options, std::unique_ptr<Device> device)
    : state_(ValueOrAbort(RankState::CreateOn(std::move(device), options))),
      plan_(state_->info().limits) {}

TargetOut RankHarness::RunRows(int32_t slot, std::span<const int32_t> tokens, int32_t start,
                               StepShape* shape) {
  plan_.Clear();
  PlanHeader& header = plan_.header();
  const int32_t rows = static_cast<int32_t>(tokens.size());
  const RankInfo& info = state_->info();
  if (start == 0) {
    header.num_new_slots = 1;
    plan_.new_slots()[0] = PlanNewSlot{slot, 0, -1, {}};
    // Slots used by a test are few: each takes the next run of blocks, enough for every position.
    for (size_t g = 0; g < info.cache.groups.size(); ++g) {
      const int32_t needed = CeilDiv(info.model.max_model_len + info.cache.lookahead_tokens,
                                     info.cache.groups[g].block_tokens);
      FIRESTEEL_CHECK((slot + 1) * needed <= info.num_blocks[g], "too few cache blocks for slot");
      for (int32_t i = 0; i < needed; ++i) {
        plan_.appends()[static_cast<size_t>(header.num_appends++)] =
            PlanAppend{static_cast<int32_t>(g), slot, i, slot * needed + i};
      }
    }
  }
  header.num_sequences = 1;
  header.num_rows = rows;
  header.num_logit_rows = rows;
  header.skips_draft_commit = start + rows <= skip_commits_up_to_ ? 1 : 0;
  plan_.sequences()[0] = PlanSequence{slot, 0, rows, start, -1, 0, rows, 0};
  std::copy(tokens.begin(), tokens.end(), plan_.tokens().begin());
  *shape = StepShape{1, rows, rows, false};
  plan_.set_shape(*shape);
  const Status valid = plan_.Validate();
  FIRESTEEL_CHECK(valid.ok(), valid.ToString());

  StepProgram& program = state_->program();
  Stream& stream = program.device.stream();
  stream.CopyToDevice(program.buffers.plan(), plan_.bytes().data(),
                      static_cast<int64_t>(plan_.bytes().size()));
  StepContext context{stream, program.device.kernels(), *shape, program.buffers.meta()};
  Launch(stream, context.ops.step_prepare, program.buffers.PrepareArgs(*shape));
  return program.target.Enqueue(context);
}

RankHarness::Pass RankHarness::RunTarget(int32_t slot, std::span<const int32_t> tokens,
                                         int32_t chunk) {
  Pass pass;
  const int32_t total = static_cast<int32_t>(tokens.size());
  const int32_t step = chunk == 0 ? total : chunk;
  for (int32_t start = 0; start < total; start += step) {
    const int32_t rows = std::min(step, total - start);
    StepShape shape;
    const TargetOut out = RunRows(
        slot, tokens.subspan(static_cast<size_t>(start), static_cast<size_t>(rows)), start, &shape);
    const int64_t vocab = state_->info().model.vocab_size;
    const auto append = [&](const float* data, int64_t count, std::vector<float>* to) {
      const std::vector<float> values = Download(state_->device(), data, count);
      to->insert(to->end(), values.begin(), values.end());
    };
    append(out.logits, rows * vocab, &pass.logits);
    const int64_t features = rows * out.features.stride;
    if (out.features.dtype == DType::kF32) {
      append(static_cast<const float*>(out.features.data), features, &pass.features);
      continue;
    }
    for (const uint16_t stored :
         Download(state_->device(), static_cast<const uint16_t*>(out.features.data), features)) {
      pass.features.push_back(Bf16ToFloat(stored));
    }
  }
  return pass;
}

RankHarness::Proposal RankHarness::Propose(int32_t slot, std::span<const int32_t> tokens,
                                           int32_t anchor_position, int32_t chunk) {
  const StepMeta& meta = state_->buffers().meta();
  StepProgram& program = state_->program();
  auto& drafter = static_cast<DsparkDrafter&>(state_->drafter());
  const int32_t step = chunk == 0 ? anchor_position : chunk;
  for (int32_t start = 0; start < anchor_position; start += step) {
    const int32_t rows = std::min(step, anchor_position - start);
    StepShape shape;
    const TargetOut out = RunRows(
        slot, tokens.subspan(static_cast<size_t>(start), static_cast<size_t>(rows)), start, &shape);
    const bool last = start + rows == anchor_position;
    Upload(program.device, meta.slots.length + slot, start + rows);
    Upload(program.device, meta.slots.last_token + slot, tokens[static_cast<size_t>(start + rows)]);
    Upload(program.device, meta.sequences.propose, last ? 1 : 0);
    StepContext context{program.device.stream(), program.device.kernels(), shape, meta};
    drafter.EnqueueCommit(context, out.features);
    if (last) drafter.EnqueuePropose(context);
  }
  Proposal proposal;
  const int32_t k = drafter.spec().draft_length;
  const int64_t vocab = state_->info().model.vocab_size;
  const int32_t* drafted = meta.slots.draft_tokens + int64_t{slot} * k;
  proposal.tokens = Download(program.device, drafted, k);
  proposal.base_logits =
      Download(program.device, drafter.base_logits(), drafter.spec().block_rows * vocab);
  proposal.confidence = Download(program.device, drafter.confidence(), k);
  return proposal;
}

}  // namespace firesteel
