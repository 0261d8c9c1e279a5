#include "engine/exec/step_buffers.h"

#include <string>

#include "kernels/core/math.h"

namespace firesteel {

StepBuffers::StepBuffers(DeviceArena& arena, const StepBufferSizes& sizes)
    : layout_(StepPlan::LayoutFor(sizes.plan)) {
  plan_ = arena.Carve<std::byte>("step.plan", layout_.total_bytes);
  meta_.window_group = sizes.window_group;
  meta_.context_group = sizes.context_group;
  meta_.window_tokens = sizes.window_tokens;
  CarveSlots(arena, sizes);
  CarveRows(arena, sizes);
}

void StepBuffers::CarveSlots(DeviceArena& arena, const StepBufferSizes& sizes) {
  SlotTables& slots = meta_.slots;
  const int64_t n = sizes.plan.max_sequences;
  slots.num_slots = sizes.plan.max_sequences;
  slots.draft_length = sizes.draft_length;
  slots.vocab = sizes.vocab;
  slots.length = arena.Carve<int32_t>("slots.length", n);
  slots.last_token = arena.Carve<int32_t>("slots.last_token", n);
  slots.draft_tokens = arena.Carve<int32_t>("slots.draft_tokens", n * sizes.draft_length);
  slots.draft_probs =
      arena.Carve<float>("slots.draft_probs", n * sizes.draft_length * int64_t{sizes.vocab});
  slots.sampling = arena.Carve<SlotSampling>("slots.sampling", n);
  slots.rules = arena.Carve<SamplingRules>("slots.rules", n);
  slots.prompt_seen = arena.Carve<uint8_t>("slots.prompt_seen", n * sizes.vocab);
  slots.output_count = arena.Carve<int32_t>("slots.output_count", n * sizes.vocab);
  slots.recent_tokens = arena.Carve<int32_t>("slots.recent_tokens", n * kRecentTokens);
  slots.num_groups = static_cast<int32_t>(sizes.block_tokens.size());
  FIRESTEEL_CHECK(slots.num_groups <= kMaxCacheGroups, "too many cache groups");
  for (size_t g = 0; g < sizes.block_tokens.size(); ++g) {
    slots.block_tokens[g] = sizes.block_tokens[g];
    slots.max_blocks[g] = CeilDiv(sizes.positions, sizes.block_tokens[g]);
    slots.block_table[g] =
        arena.Carve<int32_t>("slots.block_table." + std::to_string(g), n * slots.max_blocks[g]);
  }
}

void StepBuffers::CarveRows(DeviceArena& arena, const StepBufferSizes& sizes) {
  const int64_t rows = sizes.step.rows;
  const int64_t sequences = sizes.step.sequences;
  const auto ints = [&](const char* name, int64_t count) {
    return arena.Carve<int32_t>(std::string("step.") + name, count);
  };
  meta_.live = arena.Carve<LiveCounts>("step.live", 1);
  meta_.rows = {ints("row_slot", rows), ints("row_position", rows), ints("row_token", rows),
                ints("row_sequence", rows), ints("row_window", rows)};
  meta_.sequences = {ints("seq_slot", sequences),           ints("seq_first_row", sequences),
                     ints("seq_num_rows", sequences),       ints("seq_start", sequences),
                     ints("seq_num_drafts", sequences),     ints("seq_first_logit_row", sequences),
                     ints("seq_num_logit_rows", sequences), ints("seq_propose", sequences),
                     ints("seq_next_token", sequences)};
  meta_.logit_rows = ints("logit_rows", sizes.step.logit_rows);
  meta_.window.width = RoundUp(sizes.window_tokens, 128);
  meta_.window.index = ints("window_index", rows * meta_.window.width);
  meta_.window.valid = ints("window_valid", rows);
  FIRESTEEL_CHECK(sizes.compress_ratios.size() <= kMaxCompressors, "too many compress ratios");
  for (size_t i = 0; i < sizes.compress_ratios.size(); ++i) {
    CompressorMeta& c = meta_.compressors[i];
    c.ratio = sizes.compress_ratios[i];
    c.entries_per_block = sizes.block_tokens[static_cast<size_t>(sizes.context_group)] / c.ratio;
    c.entry_row = ints("entry_row", rows);
    c.visible = ints("visible", rows);
    if (!sizes.list_all_entries[i]) continue;
    c.all.width = RoundUp(CeilDiv(sizes.positions, c.ratio), 128);
    c.all.index = ints("all_entries", rows * c.all.width);
    c.all.valid = ints("all_valid", rows);
  }
  meta_.results = arena.Carve<SequenceResult>("step.results", sequences);
  meta_.logprobs = arena.Carve<LogprobRecord>("step.logprobs", sizes.step.logit_rows);
  if (sizes.verify_scratch) {
    meta_.verify_scratch =
        arena.Carve<float>("step.verify_scratch", sequences * int64_t{sizes.vocab});
  }
}

StepPrepareArgs StepBuffers::PrepareArgs(const StepShape& shape) const {
  StepPrepareArgs args{};
  args.plan = plan_;
  args.new_slots_offset = layout_.new_slots;
  args.appends_offset = layout_.appends;
  args.sequences_offset = layout_.sequences;
  args.tokens_offset = layout_.tokens;
  args.rules_offset = layout_.rules;
  args.slots = meta_.slots;
  args.live = meta_.live;
  args.rows = meta_.rows;
  args.sequences = meta_.sequences;
  args.logit_rows = meta_.logit_rows;
  args.window = meta_.window;
  for (int i = 0; i < kMaxCompressors; ++i) args.compressors[i] = meta_.compressors[i];
  args.window_group = meta_.window_group;
  args.context_group = meta_.context_group;
  args.window_tokens = meta_.window_tokens;
  args.padded_rows = shape.rows;
  args.padded_sequences = shape.sequences;
  args.padded_logit_rows = shape.logit_rows;
  return args;
}

}  // namespace firesteel
