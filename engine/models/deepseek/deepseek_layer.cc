#include "engine/models/deepseek/deepseek_layer.h"

#include <cmath>

#include "kernels/core/launch.h"
#include "kernels/ops/feature_tap/feature_tap.h"
#include "kernels/ops/hyper_mix/hyper_mix.h"
#include "kernels/ops/indexer/indexer.h"
#include "kernels/ops/kv_compress/kv_compress.h"
#include "kernels/ops/kv_write/kv_write.h"
#include "kernels/ops/moe/moe.h"
#include "kernels/ops/rms_norm/rms_norm.h"
#include "kernels/ops/sparse_attention/sparse_attention.h"

namespace firesteel {

void EnqueueLinear(StepContext& context, const float* x, int64_t x_cols, const Weight& weight,
                   float* y, int32_t rows, LiveCount live, int32_t groups) {
  Launch(context.stream, context.ops.linear,
         LinearArgs{F32Rows(x, x_cols), F32Rows(y, weight.out), weight, live, rows, groups});
}

void EnqueueHyperHead(StepContext& context, const DeepseekConfig& config,
                      const HyperWeights& weights, const LaneRows& rows, const LaneBuffers& lane,
                      float* out) {
  const int64_t width = int64_t{config.streams} * config.hidden;
  EnqueueLinear(context, lane.streams, width, weights.fn, lane.mix, rows.rows, rows.live);
  HyperHeadArgs args{};
  args.x = F32Rows(lane.streams, width);
  args.mix = lane.mix;
  args.params = {weights.base, weights.scale, config.streams, 0, config.hyper_eps, config.norm_eps};
  args.out = F32Rows(out, config.hidden);
  args.live = rows.live;
  args.rows = rows.rows;
  args.hidden = config.hidden;
  Launch(context.stream, context.ops.hyper_head, args);
}

void DeepseekLayer::Enqueue(StepContext& context, const LaneRows& rows,
                            const LaneBuffers& b) const {
  EnqueueCollapse(context, w_.attn_hyper, w_.attn_norm, rows, b);
  EnqueueAttention(context, rows, b);
  EnqueueExpand(context, rows, b);
  EnqueueCollapse(context, w_.ffn_hyper, w_.ffn_norm, rows, b);
  EnqueueExperts(context, rows, b);
  EnqueueExpand(context, rows, b);
  if (trace_.features == nullptr) return;
  Launch(context.stream, context.ops.feature_tap,
         FeatureTapArgs{F32Rows(b.streams, int64_t{c_.streams} * c_.hidden),
                        F32Rows(trace_.features, c_.hidden), rows.live, rows.rows, c_.hidden,
                        c_.streams});
}

void DeepseekLayer::EnqueueCollapse(StepContext& context, const HyperWeights& hyper,
                                    const uint16_t* norm, const LaneRows& rows,
                                    const LaneBuffers& b) const {
  const int64_t width = int64_t{c_.streams} * c_.hidden;
  EnqueueLinear(context, b.streams, width, hyper.fn, b.mix, rows.rows, rows.live);
  HyperCollapseArgs args{};
  args.x = F32Rows(b.streams, width);
  args.mix = b.mix;
  args.params = {hyper.base,   hyper.scale, c_.streams, c_.sinkhorn_iterations,
                 c_.hyper_eps, c_.norm_eps};
  args.weight = norm;
  args.out = F32Rows(b.x, c_.hidden);
  args.post = b.post;
  args.comb = b.comb;
  args.live = rows.live;
  args.rows = rows.rows;
  args.hidden = c_.hidden;
  Launch(context.stream, context.ops.hyper_collapse, args);
}

void DeepseekLayer::EnqueueExpand(StepContext& context, const LaneRows& rows,
                                  const LaneBuffers& b) const {
  Launch(
      context.stream, context.ops.hyper_expand,
      HyperExpandArgs{F32Rows(b.streams, int64_t{c_.streams} * c_.hidden), F32Rows(b.f, c_.hidden),
                      b.post, b.comb, rows.live, rows.rows, c_.hidden, c_.streams});
}

void DeepseekLayer::EnqueueAttention(StepContext& context, const LaneRows& rows,
                                     const LaneBuffers& b) const {
  const int32_t n = rows.rows;
  const int64_t q_cols = int64_t{c_.heads} * c_.head_dim;
  EnqueueLinear(context, b.x, c_.hidden, w_.wq_a, b.q_low, n, rows.live);
  Launch(context.stream, context.ops.rms_norm,
         RmsNormArgs{F32Rows(b.q_low, c_.q_rank), F32Rows(b.q_low, c_.q_rank), w_.q_norm, rows.live,
                     n, c_.q_rank, c_.norm_eps});
  EnqueueLinear(context, b.q_low, c_.q_rank, w_.wq_b, b.q, n, rows.live);
  Launch(context.stream, context.ops.rope,
         RopeArgs{F32Rows(b.q, q_cols), rows.position, setup_.rope, rows.live, n, c_.heads,
                  c_.head_dim, false, true, c_.norm_eps});
  EnqueueLinear(context, b.x, c_.hidden, w_.wkv, b.kv, n, rows.live);
  Launch(context.stream, context.ops.kv_write,
         KvWriteArgs{F32Rows(b.kv, c_.head_dim), w_.kv_norm, rows.position, rows.cache_row,
                     setup_.rope, caches_.window, rows.live, n, c_.norm_eps});

  SparseAttentionArgs attention{};
  attention.q = F32Rows(b.q, q_cols);
  attention.out = F32Rows(b.attn, q_cols);
  attention.window = caches_.window;
  attention.window_rows = rows.keys;
  attention.sink = w_.sink;
  attention.live = rows.live;
  attention.rows = n;
  attention.rows_per_list = rows.rows_per_list;
  attention.heads = c_.heads;
  attention.head_dim = c_.head_dim;
  attention.scale = 1.0F / std::sqrt(static_cast<float>(c_.head_dim));
  if (setup_.ratio != 0) {
    EnqueueCompressor(context, rows, b);
    attention.extra = caches_.entries;
    if (setup_.ratio == kIndexedRatio) {
      EnqueueIndexer(context, rows, b);
      attention.extra_rows = b.index_rows.view();
    } else {
      attention.extra_rows = context.meta.compressors[setup_.compressor].all.view();
    }
  }
  Launch(context.stream, context.ops.sparse_attention, attention);
  Launch(context.stream, context.ops.rope,
         RopeArgs{F32Rows(b.attn, q_cols), rows.position, setup_.rope, rows.live, n, c_.heads,
                  c_.head_dim, true, false, c_.norm_eps});
  EnqueueLinear(context, b.attn, q_cols, w_.wo_a, b.o_low, n, rows.live, c_.o_groups);
  EnqueueLinear(context, b.o_low, int64_t{c_.o_groups} * c_.o_rank, w_.wo_b, b.f, n, rows.live);
}

void DeepseekLayer::EnqueueCompressor(StepContext& context, const LaneRows& rows,
                                      const LaneBuffers& b) const {
  const CompressorMeta& meta = context.meta.compressors[setup_.compressor];
  KvCompressArgs args{};
  args.kv = b.compress_kv;
  args.score = b.compress_score;
  args.entry_row = meta.entry_row;
  args.meta = context.meta.rows;
  args.sequences = context.meta.sequences;
  args.slots = context.meta.slots;
  args.context_group = context.meta.context_group;
  args.rope = setup_.rope;
  args.live = rows.live;
  args.rows = rows.rows;
  args.ratio = setup_.ratio;
  args.overlap = setup_.ratio == kIndexedRatio;
  args.eps = c_.norm_eps;

  const auto enqueue = [&](const CompressorWeights& weights, const KvPages& pages, float* ring_kv,
                           float* ring_score, int32_t ring, const CompressTail& tail) {
    EnqueueLinear(context, b.x, c_.hidden, weights.wkv, b.compress_kv, rows.rows, rows.live);
    EnqueueLinear(context, b.x, c_.hidden, weights.wgate, b.compress_score, rows.rows, rows.live);
    args.ape = weights.ape;
    args.weight = weights.norm;
    args.pages = pages;
    args.ring_kv = ring_kv;
    args.ring_score = ring_score;
    args.ring = ring;
    args.tail = tail;
    Launch(context.stream, context.ops.kv_compress, args);
  };
  enqueue(w_.compressor, caches_.entries, caches_.ring_kv, caches_.ring_score, caches_.ring,
          caches_.tail);
  if (setup_.ratio == kIndexedRatio) {
    enqueue(w_.index_compressor, caches_.index_keys, caches_.index_ring_kv,
            caches_.index_ring_score, caches_.index_ring, caches_.index_tail);
  }
}

void DeepseekLayer::EnqueueIndexer(StepContext& context, const LaneRows& rows,
                                   const LaneBuffers& b) const {
  const CompressorMeta& meta = context.meta.compressors[setup_.compressor];
  const int64_t q_cols = int64_t{c_.index_heads} * c_.index_dim;
  EnqueueLinear(context, b.q_low, c_.q_rank, w_.index_wq_b, b.index_q, rows.rows, rows.live);
  Launch(context.stream, context.ops.rope,
         RopeArgs{F32Rows(b.index_q, q_cols), rows.position, setup_.rope, rows.live, rows.rows,
                  c_.index_heads, c_.index_dim, false, false, c_.norm_eps});
  EnqueueLinear(context, b.x, c_.hidden, w_.index_weights, b.index_weight, rows.rows, rows.live);
  IndexerArgs args{};
  args.q = F32Rows(b.index_q, q_cols);
  args.weight = b.index_weight;
  args.keys = caches_.index_keys;
  args.visible = meta.visible;
  args.meta = context.meta.rows;
  args.slots = context.meta.slots;
  args.out = b.index_rows;
  args.chosen = trace_.entries;
  args.scores = b.index_scores;
  args.score_rows = kIndexScoreRows;
  args.max_entries = b.max_entries;
  args.live = rows.live;
  args.rows = rows.rows;
  args.heads = c_.index_heads;
  args.top_k = c_.index_top_k;
  args.context_group = context.meta.context_group;
  args.entries_per_block = meta.entries_per_block;
  Launch(context.stream, context.ops.indexer, args);
}

void DeepseekLayer::EnqueueExperts(StepContext& context, const LaneRows& rows,
                                   const LaneBuffers& b) const {
  const int32_t n = rows.rows;
  const int32_t top_k = setup_.experts_per_token;
  const int32_t pairs = n * top_k;
  const int32_t inner = c_.expert_inner;
  int32_t* expert = trace_.experts != nullptr ? trace_.experts : b.expert;
  EnqueueLinear(context, b.x, c_.hidden, w_.gate, b.gate_logits, n, rows.live);
  Launch(context.stream, context.ops.moe_route,
         MoeRouteArgs{b.gate_logits, w_.gate_bias, w_.token_table, rows.token, expert,
                      b.expert_weight, rows.live, n, setup_.experts, top_k, c_.routed_scaling});
  Launch(context.stream, context.ops.moe_group,
         MoeGroupArgs{expert, b.groups, rows.live, n, setup_.experts, top_k});
  const auto grouped = [&](const float* x, int64_t cols, const ExpertWeights& weights, float* y,
                           int64_t y_cols, const int32_t* pair_row) {
    Launch(context.stream, context.ops.grouped_linear,
           GroupedLinearArgs{F32Rows(x, cols), F32Rows(y, y_cols), weights, b.groups.offset,
                             pair_row, setup_.experts, pairs});
  };
  grouped(b.x, c_.hidden, w_.expert_w1, b.pair_gate, inner, b.groups.pair_row);
  grouped(b.x, c_.hidden, w_.expert_w3, b.pair_up, inner, b.groups.pair_row);
  Launch(context.stream, context.ops.swiglu,
         SwigluArgs{F32Rows(b.pair_gate, inner), F32Rows(b.pair_up, inner),
                    F32Rows(b.pair_gate, inner), b.expert_weight, b.groups.pair_choice, rows.live,
                    top_k, pairs, inner, c_.swiglu_limit});
  grouped(b.pair_gate, inner, w_.expert_w2, b.pair_out, c_.hidden, nullptr);

  EnqueueLinear(context, b.x, c_.hidden, w_.shared_w1, b.shared_gate, n, rows.live);
  EnqueueLinear(context, b.x, c_.hidden, w_.shared_w3, b.shared_up, n, rows.live);
  Launch(context.stream, context.ops.swiglu,
         SwigluArgs{F32Rows(b.shared_gate, inner), F32Rows(b.shared_up, inner),
                    F32Rows(b.shared_gate, inner), nullptr, nullptr, rows.live, 1, n, inner,
                    c_.swiglu_limit});
  EnqueueLinear(context, b.shared_gate, inner, w_.shared_w2, b.shared_out, n, rows.live);
  Launch(context.stream, context.ops.moe_combine,
         MoeCombineArgs{F32Rows(b.pair_out, c_.hidden), F32Rows(b.shared_out, c_.hidden),
                        b.groups.pair_of, F32Rows(b.f, c_.hidden), rows.live, n, c_.hidden, top_k});
}

}  // namespace firesteel
