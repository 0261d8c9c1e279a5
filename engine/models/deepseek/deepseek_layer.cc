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

void EnqueueLinear(StepContext& context, const ConstRows& x, const Weight& weight, const Rows& y,
                   int32_t rows, LiveCount live, int32_t groups) {
  Launch(context.stream, context.ops.linear, LinearArgs{x, y, weight, live, rows, groups});
}

void EnqueueHyperHead(StepContext& context, const DeepseekConfig& config,
                      const HyperWeights& weights, const LaneRows& rows, const LaneBuffers& lane,
                      const Rows& out) {
  EnqueueLinear(context, lane.streams, weights.fn, F32Rows(lane.mix, weights.fn.out), rows.rows,
                rows.live);
  HyperHeadArgs args{};
  args.x = lane.streams;
  args.mix = lane.mix;
  args.params = {weights.base, weights.scale, config.streams, 0, config.hyper_eps, config.norm_eps};
  args.out = out;
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
         FeatureTapArgs{b.streams, F32Rows(trace_.features, c_.hidden), rows.live, rows.rows,
                        c_.hidden, c_.streams});
}

void DeepseekLayer::EnqueueCollapse(StepContext& context, const HyperWeights& hyper,
                                    const uint16_t* norm, const LaneRows& rows,
                                    const LaneBuffers& b) const {
  EnqueueLinear(context, b.streams, hyper.fn, F32Rows(b.mix, hyper.fn.out), rows.rows, rows.live);
  HyperCollapseArgs args{};
  args.x = b.streams;
  args.mix = b.mix;
  args.params = {hyper.base,   hyper.scale, c_.streams, c_.sinkhorn_iterations,
                 c_.hyper_eps, c_.norm_eps};
  args.weight = norm;
  args.out = b.x;
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
      HyperExpandArgs{b.streams, b.f, b.post, b.comb, rows.live, rows.rows, c_.hidden, c_.streams});
}

void DeepseekLayer::EnqueueAttention(StepContext& context, const LaneRows& rows,
                                     const LaneBuffers& b) const {
  const int32_t n = rows.rows;
  EnqueueLinear(context, b.x, w_.wq_a, b.q_low, n, rows.live);
  Launch(context.stream, context.ops.rms_norm,
         RmsNormArgs{b.q_low, b.q_low, w_.q_norm, rows.live, n, c_.q_rank, c_.norm_eps});
  EnqueueLinear(context, b.q_low, w_.wq_b, b.q, n, rows.live);
  Launch(context.stream, context.ops.rope,
         RopeArgs{b.q, rows.position, setup_.rope, rows.live, n, c_.heads, c_.head_dim, false, true,
                  c_.norm_eps});
  EnqueueLinear(context, b.x, w_.wkv, b.kv, n, rows.live);
  Launch(context.stream, context.ops.kv_write,
         KvWriteArgs{b.kv, w_.kv_norm, rows.position, rows.cache_row, setup_.rope, caches_.window,
                     rows.live, n, c_.norm_eps});

  SparseAttentionArgs attention{};
  attention.q = b.q;
  attention.out = b.attn;
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
      attention.extra_rows.max_valid = c_.index_top_k;
    } else {
      attention.extra_rows = context.meta.compressors[setup_.compressor].all.view();
    }
  }
  Launch(context.stream, context.ops.sparse_attention, attention);
  Launch(context.stream, context.ops.rope,
         RopeArgs{b.attn, rows.position, setup_.rope, rows.live, n, c_.heads, c_.head_dim, true,
                  false, c_.norm_eps});
  EnqueueLinear(context, b.attn, w_.wo_a, b.o_low, n, rows.live, c_.o_groups);
  EnqueueLinear(context, b.o_low, w_.wo_b, b.f, n, rows.live);
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
    EnqueueLinear(context, b.x, weights.wkv, F32Rows(b.compress_kv, weights.wkv.out), rows.rows,
                  rows.live);
    EnqueueLinear(context, b.x, weights.wgate, F32Rows(b.compress_score, weights.wgate.out),
                  rows.rows, rows.live);
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
  EnqueueLinear(context, b.q_low, w_.index_wq_b, b.index_q, rows.rows, rows.live);
  Launch(context.stream, context.ops.rope,
         RopeArgs{b.index_q, rows.position, setup_.rope, rows.live, rows.rows, c_.index_heads,
                  c_.index_dim, false, false, c_.norm_eps});
  EnqueueLinear(context, b.x, w_.index_weights, F32Rows(b.index_weight, c_.index_heads), rows.rows,
                rows.live);
  IndexerArgs args{};
  args.q = b.index_q;
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
  EnqueueLinear(context, b.x, w_.gate, F32Rows(b.gate_logits, setup_.experts), n, rows.live);
  Launch(context.stream, context.ops.moe_route,
         MoeRouteArgs{b.gate_logits, w_.gate_bias, w_.token_table, rows.token, expert,
                      b.expert_weight, rows.live, n, setup_.experts, top_k, c_.routed_scaling});
  Launch(context.stream, context.ops.moe_group,
         MoeGroupArgs{expert, b.groups, rows.live, n, setup_.experts, top_k});
  const auto grouped = [&](const Rows& x, const ExpertWeights& weights, const Rows& y,
                           const int32_t* pair_row) {
    Launch(context.stream, context.ops.grouped_linear,
           GroupedLinearArgs{x, y, weights, b.groups.offset, pair_row, setup_.experts, pairs});
  };
  grouped(b.x, w_.expert_w1, b.pair_gate, b.groups.pair_row);
  grouped(b.x, w_.expert_w3, b.pair_up, b.groups.pair_row);
  Launch(context.stream, context.ops.swiglu,
         SwigluArgs{b.pair_gate, b.pair_up, b.pair_gate, b.expert_weight, b.groups.pair_choice,
                    rows.live, top_k, pairs, inner, c_.swiglu_limit});
  grouped(b.pair_gate, w_.expert_w2, b.pair_out, nullptr);

  EnqueueLinear(context, b.x, w_.shared_w1, b.shared_gate, n, rows.live);
  EnqueueLinear(context, b.x, w_.shared_w3, b.shared_up, n, rows.live);
  Launch(context.stream, context.ops.swiglu,
         SwigluArgs{b.shared_gate, b.shared_up, b.shared_gate, nullptr, nullptr, rows.live, 1, n,
                    inner, c_.swiglu_limit});
  EnqueueLinear(context, b.shared_gate, w_.shared_w2, b.shared_out, n, rows.live);
  Launch(context.stream, context.ops.moe_combine,
         MoeCombineArgs{b.pair_out, b.shared_out, b.groups.pair_of, b.f, rows.live, n, c_.hidden,
                        top_k});
}

}  // namespace firesteel
