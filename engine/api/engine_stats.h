// A snapshot of the engine's counters. Monotonic unless named a gauge.
#pragma once

#include <array>
#include <cstdint>

#include "engine/plan/step_result.h"

namespace firesteel {

struct EngineStats {
  int64_t steps = 0;          // device steps completed
  int64_t prompt_tokens = 0;  // prompt rows processed; prefix hits and recomputed rows do not count
  int64_t generation_tokens = 0;  // tokens emitted to requests (after truncation)
  int64_t rounds = 0;             // speculative rounds with at least one draft
  int64_t drafted_tokens = 0;
  int64_t accepted_tokens = 0;  // after truncation at EOS, stop or max_tokens
  std::array<int64_t, kMaxDraftLength>
      accepted_at_position{};  // [i]: rounds that accepted draft i (0-based)
  int64_t preemptions = 0;
  int64_t prefix_queries =
      0;  // known tokens of sequences that started or resumed with the prefix cache on
  int64_t prefix_hits = 0;       // of those, tokens whose caches were found
  int64_t requests_running = 0;  // gauge
  int64_t requests_waiting = 0;  // gauge
  int64_t blocks_total = 0;      // gauge: all groups
  int64_t blocks_free =
      0;                // gauge: all groups; cached prefixes that no sequence holds count as free
  bool healthy = true;  // gauge: false after an engine fault
};

}  // namespace firesteel
