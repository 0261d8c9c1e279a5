// One DeepSeek-V4 block: hyper-connection, attention, hyper-connection, mixture of experts. Target layers and draft
// stages are the same block; they differ in their lane's rows and keys, and a stage has no compressor.
#pragma once

#include <cstdint>

#include "engine/exec/step_context.h"
#include "engine/models/deepseek/deepseek_config.h"
#include "engine/models/deepseek/deepseek_lane.h"
#include "engine/models/deepseek/deepseek_weights.h"
#include "kernels/ops/kv_compress/kv_compress.h"
#include "kernels/ops/kv_record.h"

namespace firesteel {

// Caches of one block. Constant after Bind.
struct BlockCaches {
  KvPages window;
  KvPages entries;           // ratio 4 and 128
  KvPages index_keys;        // ratio 4
  float* ring_kv = nullptr;  // compressor state, see KvCompressArgs
  float* ring_score = nullptr;
  float* index_ring_kv = nullptr;
  float* index_ring_score = nullptr;
  CompressTail tail{};        // ratio 4
  CompressTail index_tail{};  // ratio 4
  int32_t ring = 0;
  int32_t index_ring = 0;
};

class DeepseekLayer {
 public:
  struct Setup {
    int32_t ratio = 0;
    int32_t compressor = -1;  // index into StepMeta::compressors
    int32_t experts = 0;
    int32_t experts_per_token = 0;
    RopeTable rope;
  };

  DeepseekLayer(const DeepseekConfig& config, const BlockWeights& weights, const Setup& setup)
      : c_(config), w_(weights), setup_(setup) {}

  void set_caches(const BlockCaches& caches) { caches_ = caches; }
  void set_rope(const RopeTable& rope) { setup_.rope = rope; }
  const BlockCaches& caches() const { return caches_; }
  const BlockWeights& weights() const { return w_; }
  const Setup& setup() const { return setup_; }

  // Transforms buffers.streams in place.
  void Enqueue(StepContext& context, const LaneRows& rows, const LaneBuffers& buffers) const;

  // Where a pass leaves its choices and its output, for tests and timing. Device memory; null leaves them out.
  struct Trace {
    int32_t* experts = nullptr;  // [rows, top_k]
    int32_t* entries = nullptr;  // [rows, index width] chosen compressed entries, -1 padded
    float* features = nullptr;   // [rows, hidden] mean of the streams after the block
  };
  void set_trace(const Trace& trace) { trace_ = trace; }

 private:
  void EnqueueCollapse(StepContext& context, const HyperWeights& hyper, const uint16_t* norm,
                       const LaneRows& rows, const LaneBuffers& b) const;
  void EnqueueExpand(StepContext& context, const LaneRows& rows, const LaneBuffers& b) const;
  void EnqueueAttention(StepContext& context, const LaneRows& rows, const LaneBuffers& b) const;
  void EnqueueCompressor(StepContext& context, const LaneRows& rows, const LaneBuffers& b) const;
  void EnqueueIndexer(StepContext& context, const LaneRows& rows, const LaneBuffers& b) const;
  void EnqueueExperts(StepContext& context, const LaneRows& rows, const LaneBuffers& b) const;

  const DeepseekConfig& c_;
  const BlockWeights& w_;
  Setup setup_;
  BlockCaches caches_;
  Trace trace_;
};

// y = x W^T over a lane's rows. Shared by the blocks, the head and the drafter.
void EnqueueLinear(StepContext& context, const ConstRows& x, const Weight& weight, const Rows& y,
                   int32_t rows, LiveCount live, int32_t groups = 1);

// Collapses a lane's residual streams into one row each for the LM head. Shared by the target and the drafter.
void EnqueueHyperHead(StepContext& context, const DeepseekConfig& config,
                      const HyperWeights& weights, const LaneRows& rows, const LaneBuffers& lane,
                      const Rows& out);

inline Rows F32Rows(float* data, int64_t stride) { return Rows{data, stride, DType::kF32}; }

}  // namespace firesteel
