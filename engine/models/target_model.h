// A target: weights, caches and one function that enqueues its forward pass. Holds no per-request state.
//
// Start-up order, all on the rank thread: the factory loads weights; cache_spec() tells the memory plan what a block
// costs; Bind() reserves pools and workspaces; afterwards Enqueue only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/exec/step_context.h"
#include "engine/plan/cache_spec.h"
#include "kernels/core/arena.h"

namespace firesteel {

// Largest padded sizes any step may have.
struct StepLimits {
  int32_t rows = 0;
  int32_t sequences = 0;
  int32_t logit_rows = 0;
};

struct TargetSpec {
  int32_t vocab = 0;
  int32_t max_positions = 0;  // the checkpoint's own limit
  int32_t window_tokens = 0;
  std::vector<int32_t> compress_ratios;  // distinct ratios with a compressor, e.g. {4, 128}
  std::vector<bool> list_all_entries;    // per ratio: some layer reads every visible entry
};

// Weight bytes of one pass, for floors: a pass reads `dense` once, and in each layer the experts that some row chose.
struct WeightTraffic {
  int64_t dense_bytes = 0;
  int64_t dense_parameters = 0;  // per row: 2 FLOP each
  int32_t expert_layers = 0;
  int64_t expert_bytes = 0;  // one expert, summed over the layers
  int64_t expert_parameters = 0;
  int32_t experts = 0;
  int32_t experts_per_row = 0;
};

class TargetModel {
 public:
  virtual ~TargetModel() = default;
  virtual const TargetSpec& spec() const = 0;

  // Bytes that one block of each cache group costs this model (context, window).
  virtual int64_t context_bytes_per_block(int32_t block_tokens) const = 0;
  virtual int64_t window_bytes_per_block(int32_t block_tokens) const = 0;

  virtual WeightTraffic weight_traffic() const = 0;

  // Cache bytes that a decode step must read: the window, the index keys and entries that every row sees once per sequence,
  // entries that a row chooses for itself once per row.
  virtual int64_t cache_traffic(int32_t sequences, int32_t rows, int32_t context) const = 0;

  // From the next enqueued step on each layer leaves its rows' experts, [rows, experts_per_row], in its buffer of this list
  // (device memory); empty: nowhere. Graphs that were captured before do what they did.
  virtual void set_expert_trace(std::span<int32_t* const> layers) = 0;

  struct Caches {
    int32_t context_blocks = 0;
    int32_t context_block_tokens = 0;
    int32_t window_blocks = 0;
    int32_t window_block_tokens = 0;
    int32_t slots = 0;
    int32_t positions = 0;         // positions a sequence may reach, look-ahead included
    int32_t speculative_rows = 0;  // K + 1: rows that may be written and then rejected
  };
  virtual void Bind(DeviceArena& arena, const StepLimits& limits, const Caches& caches) = 0;

  virtual TargetOut Enqueue(StepContext& context) = 0;
};

}  // namespace firesteel
