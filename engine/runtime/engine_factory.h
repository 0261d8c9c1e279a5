// Builds an Engine on any rank. Engine::Create uses it with CreateRank; tests use it with a scripted rank.
#pragma once

#include <functional>
#include <memory>

#include "engine/api/engine.h"
#include "engine/api/engine_options.h"
#include "engine/exec/rank.h"
#include "kernels/core/status.h"

namespace firesteel {

using RankFactory = std::function<Result<std::unique_ptr<RankExecutor>>()>;

// Calls `make_rank` once on the new rank thread and returns its error, or a running engine. Of the options only those
// about batching are read: max_batched_tokens, prefill_chunk, max_queue and graphs.
Result<std::unique_ptr<Engine>> CreateEngineOn(RankFactory make_rank, const EngineOptions& options);

}  // namespace firesteel
