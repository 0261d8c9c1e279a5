#include "engine/sched/scheduler_config.h"

#include <string>

#include "engine/plan/step_result.h"
#include "kernels/core/math.h"

namespace firesteel {
namespace {

Status CheckAtLeast(const std::string& what, int64_t found, int64_t least) {
  if (found >= least) return Status::Ok();
  return InvalidArgument(what + " is " + std::to_string(found) + ", needs at least " +
                         std::to_string(least));
}

}  // namespace

int32_t SchedulerConfig::row_budget() const { return Min(max_batched_tokens, limits.max_rows); }

int32_t SchedulerConfig::max_rows_per_sequence() const {
  return Max(draft_length + 1, Min(prefill_chunk, row_budget()));
}

int32_t SchedulerConfig::window_tokens() const {
  int32_t window = 0;
  for (const CacheGroupSpec& group : cache.groups) window = Max(window, group.retained_tokens);
  return window;
}

int64_t SchedulerConfig::least_appends() const {
  int64_t appends = 0;
  for (const CacheGroupSpec& group : cache.groups) {
    // The first step of a slot maps its rows and the lookahead; a later one may also unmap what it
    // left behind.
    appends += CeilDiv(draft_length + 1 + cache.lookahead_tokens, group.block_tokens) + 1;
    if (group.retained_tokens > 0) {
      appends += CeilDiv(max_rows_per_sequence(), group.block_tokens) + 1;
    }
  }
  return appends;
}

Status SchedulerConfig::Validate() const {
  if (draft_length < 0 || draft_length > kMaxDraftLength) {
    return InvalidArgument("draft length is " + std::to_string(draft_length) + ", needs 0.." +
                           std::to_string(kMaxDraftLength));
  }
  FIRESTEEL_RETURN_IF_ERROR(CheckAtLeast("vocabulary size", vocab_size, 1));
  FIRESTEEL_RETURN_IF_ERROR(CheckAtLeast("max-model-len", max_model_len, 2));
  FIRESTEEL_RETURN_IF_ERROR(CheckAtLeast("max-sequences", limits.max_sequences, 1));
  FIRESTEEL_RETURN_IF_ERROR(CheckAtLeast("prefill-chunk", prefill_chunk, 1));
  FIRESTEEL_RETURN_IF_ERROR(CheckAtLeast("max-queue", max_queue, 0));
  // A verify block is never split over steps.
  FIRESTEEL_RETURN_IF_ERROR(
      CheckAtLeast("max-batched-tokens", max_batched_tokens, draft_length + 1));
  FIRESTEEL_RETURN_IF_ERROR(CheckAtLeast("rows per step", limits.max_rows, draft_length + 1));
  // A verify block needs one per row, a last prefill chunk one.
  FIRESTEEL_RETURN_IF_ERROR(
      CheckAtLeast("logit rows per step", limits.max_logit_rows,
                   Min(limits.max_sequences * (draft_length + 1), limits.max_rows)));
  FIRESTEEL_RETURN_IF_ERROR(CheckAtLeast("cache lookahead", cache.lookahead_tokens, 0));
  if (cache.groups.size() != num_blocks.size()) {
    return InvalidArgument("the model has " + std::to_string(cache.groups.size()) +
                           " cache groups, but " + std::to_string(num_blocks.size()) +
                           " pool sizes are given");
  }
  for (size_t g = 0; g < cache.groups.size(); ++g) {
    const CacheGroupSpec& group = cache.groups[g];
    const std::string where = "cache group '" + group.name + "': ";
    FIRESTEEL_RETURN_IF_ERROR(CheckAtLeast(where + "block_tokens", group.block_tokens, 1));
    FIRESTEEL_RETURN_IF_ERROR(CheckAtLeast(where + "retained_tokens", group.retained_tokens, 0));
    FIRESTEEL_RETURN_IF_ERROR(CheckAtLeast(where + "number of blocks", num_blocks[g], 1));
  }
  return CheckAtLeast("block appends per step", limits.max_appends, least_appends());
}

}  // namespace firesteel
