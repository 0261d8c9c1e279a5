#include "engine/exec/memory_plan.h"

#include <algorithm>
#include <string>

#include "kernels/core/math.h"

namespace firesteel {
namespace {

// Logit rows besides those of the verify blocks, so that a prompt can be scored beside a full batch.
constexpr int32_t kScoringRows = 64;

// Context blocks when the user gives no capacity: every slot at full length, as far as there is room.
int64_t DefaultContextBlocks(const EngineOptions& options, int32_t positions,
                             int64_t bytes_per_block, const CacheRoom& room) {
  const int64_t per_sequence = CeilDiv(positions, kContextBlockTokens);
  const int64_t wanted = per_sequence * options.max_sequences;
  if (bytes_per_block == 0) return wanted;
  const int64_t fitting = room.bytes / bytes_per_block;
  if (!room.device) return std::max(per_sequence, std::min(wanted, fitting));
  return std::min(options.prefix_cache ? 2 * wanted : wanted, fitting);
}

// Tells why one sequence of the length that the options ask for does not fit into `longest` positions.
Status TooShort(const EngineOptions& options, const MemoryPlan& m, int64_t longest) {
  const std::string needed = "one sequence of max-model-len " + std::to_string(m.max_model_len) +
                             " needs " + std::to_string(m.max_model_len + m.cache.lookahead_tokens);
  if (options.cache_tokens > 0) {
    return InvalidArgument("cache-tokens is " + std::to_string(options.cache_tokens) + ", " +
                           needed);
  }
  return InvalidArgument("the device has room for a context cache of " +
                         std::to_string(std::max<int64_t>(longest, 0)) + " tokens, " + needed);
}

}  // namespace

Result<MemoryPlan> PlanMemory(const EngineOptions& options, const TargetModel& target,
                              const Drafter& drafter, const CacheRoom& room) {
  const TargetSpec& spec = target.spec();
  const DraftSpec& draft = drafter.spec();
  MemoryPlan m;
  m.max_model_len = options.max_model_len == 0 ? spec.max_positions : options.max_model_len;
  if (m.max_model_len > spec.max_positions) {
    return InvalidArgument("max-model-len is " + std::to_string(m.max_model_len) +
                           ", the checkpoint allows at most " + std::to_string(spec.max_positions));
  }
  // A verify step writes the anchor and K drafts, then the next block sits behind up to K + 1 newly committed tokens.
  m.cache.lookahead_tokens = draft.draft_length + 1 + draft.block_rows;
  m.positions = m.max_model_len + m.cache.lookahead_tokens;

  const int32_t verify_rows = draft.draft_length + 1;
  m.plan.max_sequences = options.max_sequences;
  m.plan.max_rows =
      RoundUp(std::max(options.max_batched_tokens, options.max_sequences * verify_rows), 16);
  m.plan.max_appends =
      4 * CeilDiv(m.plan.max_rows, kWindowBlockTokens) + 16 * options.max_sequences;
  if (options.prefix_cache) {
    // A slot that starts behind a cached prefix announces all of its blocks in one step.
    m.plan.max_appends += CeilDiv(m.positions, kContextBlockTokens) +
                          CeilDiv(spec.window_tokens, kWindowBlockTokens) + 1;
  }
  m.step.rows = m.plan.max_rows;
  m.step.sequences = m.plan.max_sequences;
  m.step.logit_rows = Min(options.max_sequences * verify_rows + kScoringRows, m.step.rows);
  m.plan.max_logit_rows = m.step.logit_rows;

  const int64_t context_bytes = target.context_bytes_per_block(kContextBlockTokens);
  const int64_t window_bytes = target.window_bytes_per_block(kWindowBlockTokens) +
                               drafter.window_bytes_per_block(kWindowBlockTokens);
  m.cache.groups = {{"context", kContextBlockTokens, context_bytes, 0},
                    {"window", kWindowBlockTokens, window_bytes, spec.window_tokens}};
  // A prefix can be resumed where its window is cached. Window blocks cost several times what the context blocks of the
  // same tokens do, so there is room for the windows of every other context block: one window block per context block.
  const int64_t cached_windows = options.prefix_cache ? 1 : 0;  // window blocks per context block
  m.bytes_per_context_block = context_bytes + cached_windows * window_bytes;
  const int64_t context_blocks =
      options.cache_tokens > 0
          ? CeilDiv<int64_t>(options.cache_tokens, kContextBlockTokens)
          : DefaultContextBlocks(options, m.positions, m.bytes_per_context_block, room);
  // One sequence of full length must fit alone; a smaller cache shortens what a sequence may become.
  const int64_t longest = context_blocks * kContextBlockTokens - m.cache.lookahead_tokens;
  if (longest < m.max_model_len) {
    if (options.max_model_len != 0 || longest < 1) {
      return TooShort(options, m, longest);
    }
    m.max_model_len = static_cast<int32_t>(longest);
    m.positions = m.max_model_len + m.cache.lookahead_tokens;
  }
  // What every slot needs at once for its window and look-ahead, and what one step of prefill rows adds.
  const int64_t window_per_slot =
      CeilDiv(spec.window_tokens + m.cache.lookahead_tokens, kWindowBlockTokens) + 2;
  const int64_t window_blocks = window_per_slot * options.max_sequences +
                                CeilDiv(m.plan.max_rows, kWindowBlockTokens) +
                                cached_windows * context_blocks;
  m.num_blocks = {CheckedCast<int32_t>(context_blocks), CheckedCast<int32_t>(window_blocks)};

  m.caches.context_blocks = m.num_blocks[kContextGroup];
  m.caches.context_block_tokens = kContextBlockTokens;
  m.caches.window_blocks = m.num_blocks[kWindowGroup];
  m.caches.window_block_tokens = kWindowBlockTokens;
  m.caches.slots = options.max_sequences;
  m.caches.positions = m.positions;
  m.caches.speculative_rows = verify_rows;
  return m;
}

}  // namespace firesteel
