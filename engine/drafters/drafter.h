// A drafter: proposes tokens for the next round from the target's features. Holds no per-request state.
//
// After verification a step calls EnqueueCommit (verified target features become draft context) and EnqueuePropose
// (fills SlotTables::draft_tokens and draft_probs). A drafter with K == 0 enqueues nothing: plain decoding is the same path.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/exec/step_context.h"
#include "engine/models/target_model.h"
#include "kernels/core/arena.h"

namespace firesteel {

struct DraftSpec {
  int32_t draft_length = 0;  // K: drafts verified per round at most
  int32_t block_rows = 0;    // rows of a draft block; positions written past the last committed one
  std::vector<int32_t> tapped_layers;
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual const DraftSpec& spec() const = 0;

  // Bytes that one block of the window group costs the draft stages.
  virtual int64_t window_bytes_per_block(int32_t block_tokens) const = 0;

  // Of the proposing pass over draft rows; the shared LM head included, the Markov table once per drafted token.
  virtual WeightTraffic weight_traffic() const = 0;
  // As TargetModel's, for a step that proposes for all sequences.
  virtual int64_t cache_traffic(int32_t sequences, int32_t context) const = 0;
  virtual void set_expert_trace(std::span<int32_t* const> layers) = 0;

  virtual void Bind(DeviceArena& arena, const StepLimits& limits,
                    const TargetModel::Caches& caches) = 0;

  // The metadata that the two below read. EnqueueCommit begins with it; alone it is for timing.
  virtual void EnqueuePrepare(StepContext& context) = 0;
  virtual void EnqueueCommit(StepContext& context, const ConstRows& features) = 0;
  virtual void EnqueuePropose(StepContext& context) = 0;
};

}  // namespace firesteel
