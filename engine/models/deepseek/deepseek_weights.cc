#include "engine/models/deepseek/deepseek_weights.h"

#include <utility>

#include "kernels/core/math.h"

namespace firesteel {
namespace {

// One walk over the tensors serves three purposes: listing those that a checkpoint must hold, taking them, and making
// synthetic ones. The visitor sees the same sequence of names and shapes each time, so the three can never drift apart.
class Lister {
 public:
  explicit Lister(std::vector<ExpectedTensor>* list) : list_(list) {}
  const void* Plain(const std::string& name, DType dtype, std::vector<int64_t> shape) {
    list_->push_back({name, dtype, std::move(shape)});
    return nullptr;
  }
  ExpertWeights Experts(const std::string&, const std::vector<Weight>&) { return {}; }

 private:
  std::vector<ExpectedTensor>* list_;
};

class Taker {
 public:
  Taker(WeightSet& set, WeightPlacer& placer) : set_(set), placer_(placer) {}
  const void* Plain(const std::string& name, DType dtype, const std::vector<int64_t>&) {
    return placer_.Place(name, set_.Take(name), DTypeBytes(dtype));
  }
  ExpertWeights Experts(const std::string& name, const std::vector<Weight>& weights) {
    const auto bytes = static_cast<int64_t>(weights.size() * sizeof(Weight));
    const void* table = placer_.Copy(name, weights.data(), bytes);
    return {static_cast<const Weight*>(table), weights.front()};
  }

 private:
  WeightSet& set_;
  WeightPlacer& placer_;
};

class Maker {
 public:
  explicit Maker(SyntheticTensors& tensors) : tensors_(tensors) {}
  const void* Plain(const std::string& name, DType dtype, const std::vector<int64_t>& shape) {
    return tensors_.Tensor(name, dtype, shape);
  }
  ExpertWeights Experts(const std::string& name, const std::vector<Weight>& weights) {
    const auto bytes = static_cast<int64_t>(weights.size() * sizeof(Weight));
    return {static_cast<const Weight*>(tensors_.Table(name, weights.data(), bytes)),
            weights.front()};
  }

 private:
  SyntheticTensors& tensors_;
};

template <typename Visitor>
class Walk {
 public:
  Walk(const DeepseekConfig& config, Visitor& visitor) : c_(config), v_(visitor) {}

  DeepseekWeights Target() {
    DeepseekWeights w;
    w.embed = Bf16("embed.weight", {c_.vocab, c_.hidden});
    w.head = Dense("head.weight", DType::kBf16, c_.vocab, c_.hidden);
    w.norm = Bf16("norm.weight", {c_.hidden});
    w.head_hyper = Hyper("hc_head", c_.streams);
    for (int32_t l = 0; l < c_.layers; ++l) {
      const std::string prefix = "layers." + std::to_string(l) + ".";
      w.layers.push_back(Block(prefix, c_.ratios[static_cast<size_t>(l)], l < c_.hash_layers,
                               c_.experts, c_.experts_per_token));
    }
    return w;
  }

  DsparkWeights Draft() {
    const DsparkConfig& d = c_.dspark;
    DsparkWeights w;
    w.main_proj = Quantised("mtp.0.main_proj", c_.hidden, d.stages * c_.hidden);
    w.main_norm = Bf16("mtp.0.main_norm.weight", {c_.hidden});
    for (int32_t s = 0; s < d.stages; ++s) {
      w.stages.push_back(
          Block("mtp." + std::to_string(s) + ".", 0, false, d.experts, d.experts_per_token));
    }
    const std::string last = "mtp." + std::to_string(d.stages - 1) + ".";
    w.norm = Bf16(last + "norm.weight", {c_.hidden});
    w.head_hyper = Hyper(last + "hc_head", c_.streams);
    w.markov_w1 = Bf16(last + "markov_head.markov_w1.weight", {c_.vocab, d.markov_rank});
    w.markov_w2 =
        Dense(last + "markov_head.markov_w2.weight", DType::kBf16, c_.vocab, d.markov_rank);
    w.confidence = Bf16(last + "confidence_head.proj.weight", {1, c_.hidden + d.markov_rank});
    return w;
  }

 private:
  const uint16_t* Bf16(const std::string& name, std::vector<int64_t> shape) {
    return static_cast<const uint16_t*>(v_.Plain(name, DType::kBf16, std::move(shape)));
  }
  const float* F32(const std::string& name, std::vector<int64_t> shape) {
    return static_cast<const float*>(v_.Plain(name, DType::kF32, std::move(shape)));
  }

  Weight Dense(const std::string& name, DType dtype, int32_t out, int32_t in) {
    Weight w;
    w.data = v_.Plain(name, dtype, {out, in});
    w.dtype = dtype;
    w.out = out;
    w.in = in;
    return w;
  }

  Weight WithScale(const std::string& name, DType dtype, int32_t out, int32_t in) {
    if (dtype == DType::kBf16) return Dense(name + ".weight", dtype, out, in);
    Weight w;
    const bool pairs = dtype == DType::kF4E2M1x2;
    w.data = v_.Plain(name + ".weight", dtype, {out, pairs ? in / 2 : in});
    const int64_t b = c_.fp8_block;
    const std::vector<int64_t> scale_shape =
        pairs ? std::vector<int64_t>{out, in / 32}
              : std::vector<int64_t>{CeilDiv<int64_t>(out, b), CeilDiv<int64_t>(in, b)};
    w.scale = static_cast<const uint8_t*>(v_.Plain(name + ".scale", DType::kF8E8M0, scale_shape));
    w.dtype = dtype;
    w.out = out;
    w.in = in;
    w.block = pairs ? 0 : c_.fp8_block;
    return w;
  }

  Weight Quantised(const std::string& name, int32_t out, int32_t in) {
    return WithScale(name, c_.linear_dtype, out, in);
  }

  HyperWeights Hyper(const std::string& prefix, int32_t rows) {
    HyperWeights w;
    w.fn = Dense(prefix + "_fn", DType::kF32, rows, c_.streams * c_.hidden);
    w.base = F32(prefix + "_base", {rows});
    w.scale = F32(prefix + "_scale", {rows == c_.streams ? 1 : 3});
    return w;
  }

  CompressorWeights Compressor(const std::string& prefix, int32_t ratio, int32_t width) {
    const int32_t channels = ratio == kIndexedRatio ? 2 * width : width;
    CompressorWeights w;
    w.ape = F32(prefix + "ape", {ratio, channels});
    w.norm = Bf16(prefix + "norm.weight", {width});
    w.wkv = Dense(prefix + "wkv.weight", DType::kBf16, channels, c_.hidden);
    w.wgate = Dense(prefix + "wgate.weight", DType::kBf16, channels, c_.hidden);
    return w;
  }

  void Attention(const std::string& p, int32_t ratio, BlockWeights* w) {
    const int32_t mix = (2 + c_.streams) * c_.streams;
    w->attn_norm = Bf16(p + "attn_norm.weight", {c_.hidden});
    w->attn_hyper = Hyper(p + "hc_attn", mix);
    w->sink = F32(p + "attn.attn_sink", {c_.heads});
    w->q_norm = Bf16(p + "attn.q_norm.weight", {c_.q_rank});
    w->kv_norm = Bf16(p + "attn.kv_norm.weight", {c_.head_dim});
    w->wq_a = Quantised(p + "attn.wq_a", c_.q_rank, c_.hidden);
    w->wq_b = Quantised(p + "attn.wq_b", c_.heads * c_.head_dim, c_.q_rank);
    w->wkv = Quantised(p + "attn.wkv", c_.head_dim, c_.hidden);
    w->wo_a =
        Quantised(p + "attn.wo_a", c_.o_groups * c_.o_rank, c_.heads / c_.o_groups * c_.head_dim);
    w->wo_b = Quantised(p + "attn.wo_b", c_.hidden, c_.o_groups * c_.o_rank);
    if (ratio == 0) return;
    w->compressor = Compressor(p + "attn.compressor.", ratio, c_.head_dim);
    if (ratio != kIndexedRatio) return;
    w->index_compressor = Compressor(p + "attn.indexer.compressor.", ratio, c_.index_dim);
    w->index_wq_b = Quantised(p + "attn.indexer.wq_b", c_.index_heads * c_.index_dim, c_.q_rank);
    w->index_weights =
        Dense(p + "attn.indexer.weights_proj.weight", DType::kBf16, c_.index_heads, c_.hidden);
  }

  void Experts(const std::string& p, bool hash, int32_t experts, int32_t top_k, BlockWeights* w) {
    const int32_t mix = (2 + c_.streams) * c_.streams;
    const int32_t inner = c_.expert_inner;
    w->ffn_norm = Bf16(p + "ffn_norm.weight", {c_.hidden});
    w->ffn_hyper = Hyper(p + "hc_ffn", mix);
    w->gate = Dense(p + "ffn.gate.weight", DType::kBf16, experts, c_.hidden);
    if (hash) {
      w->token_table = static_cast<const int64_t*>(
          v_.Plain(p + "ffn.gate.tid2eid", DType::kI64, {c_.vocab, top_k}));
    } else {
      w->gate_bias = F32(p + "ffn.gate.bias", {experts});
    }
    std::vector<Weight> w1, w2, w3;
    for (int32_t e = 0; e < experts; ++e) {
      const std::string expert = p + "ffn.experts." + std::to_string(e) + ".";
      w1.push_back(WithScale(expert + "w1", c_.expert_dtype, inner, c_.hidden));
      w2.push_back(WithScale(expert + "w2", c_.expert_dtype, c_.hidden, inner));
      w3.push_back(WithScale(expert + "w3", c_.expert_dtype, inner, c_.hidden));
    }
    w->expert_w1 = v_.Experts(p + "ffn.experts.w1", w1);
    w->expert_w2 = v_.Experts(p + "ffn.experts.w2", w2);
    w->expert_w3 = v_.Experts(p + "ffn.experts.w3", w3);
    w->shared_w1 = Quantised(p + "ffn.shared_experts.w1", inner, c_.hidden);
    w->shared_w2 = Quantised(p + "ffn.shared_experts.w2", c_.hidden, inner);
    w->shared_w3 = Quantised(p + "ffn.shared_experts.w3", inner, c_.hidden);
  }

  BlockWeights Block(const std::string& prefix, int32_t ratio, bool hash, int32_t experts,
                     int32_t top_k) {
    BlockWeights w;
    Attention(prefix, ratio, &w);
    Experts(prefix, hash, experts, top_k, &w);
    return w;
  }

  const DeepseekConfig& c_;
  Visitor& v_;
};

std::vector<ExpectedTensor> ExpectedDraftTensors(const DeepseekConfig& config) {
  std::vector<ExpectedTensor> list;
  Lister lister(&list);
  if (config.dspark.block > 0) Walk(config, lister).Draft();
  return list;
}

}  // namespace

std::vector<ExpectedTensor> ExpectedDeepseekTensors(const DeepseekConfig& config) {
  std::vector<ExpectedTensor> list;
  Lister lister(&list);
  Walk(config, lister).Target();
  const std::vector<ExpectedTensor> draft = ExpectedDraftTensors(config);
  list.insert(list.end(), draft.begin(), draft.end());
  return list;
}

DeepseekWeights LoadDeepseekWeights(const DeepseekConfig& config, WeightSet& set,
                                    WeightPlacer& placer) {
  Taker taker(set, placer);
  return Walk(config, taker).Target();
}

DsparkWeights LoadDsparkWeights(const DeepseekConfig& config, WeightSet& set,
                                WeightPlacer& placer) {
  Taker taker(set, placer);
  return Walk(config, taker).Draft();
}

DeepseekWeights MakeDeepseekWeights(const DeepseekConfig& config, SyntheticTensors& tensors) {
  Maker maker(tensors);
  return Walk(config, maker).Target();
}

DsparkWeights MakeDsparkWeights(const DeepseekConfig& config, SyntheticTensors& tensors) {
  Maker maker(tensors);
  return Walk(config, maker).Draft();
}

namespace {

int64_t StoredBytes(const Weight& w) {
  const int64_t elements = int64_t{w.out} * w.in;
  switch (w.dtype) {
    case DType::kF4E2M1x2: return elements / 2 + elements / 32;
    case DType::kF8E4M3:
      return elements + CeilDiv<int64_t>(w.out, w.block) * CeilDiv<int64_t>(w.in, w.block);
    default: return elements * DTypeBytes(w.dtype);
  }
}

}  // namespace

void AddWeightTraffic(const Weight& weight, WeightTraffic* traffic) {
  if (weight.data == nullptr) return;
  traffic->dense_bytes += StoredBytes(weight);
  traffic->dense_parameters += int64_t{weight.out} * weight.in;
}

void AddBlockTraffic(const DeepseekConfig& config, const BlockWeights& block, int32_t experts,
                     int32_t experts_per_token, WeightTraffic* traffic) {
  for (const Weight* w :
       {&block.attn_hyper.fn, &block.ffn_hyper.fn, &block.wq_a, &block.wq_b, &block.wkv,
        &block.wo_a, &block.wo_b, &block.compressor.wkv, &block.compressor.wgate,
        &block.index_compressor.wkv, &block.index_compressor.wgate, &block.index_wq_b,
        &block.index_weights, &block.gate, &block.shared_w1, &block.shared_w2, &block.shared_w3}) {
    AddWeightTraffic(*w, traffic);
  }
  // Expert tables may sit in device memory; their shape is known from the config.
  Weight expert;
  expert.dtype = config.expert_dtype;
  expert.out = config.expert_inner;
  expert.in = config.hidden;
  traffic->expert_bytes += 3 * StoredBytes(expert);
  traffic->expert_parameters += int64_t{3} * expert.out * expert.in;
  ++traffic->expert_layers;
  traffic->experts = experts;
  traffic->experts_per_row = experts_per_token;
}

void SkipDsparkWeights(const DeepseekConfig& config, WeightSet& set) {
  for (const ExpectedTensor& tensor : ExpectedDraftTensors(config)) set.Take(tensor.name);
}

}  // namespace firesteel
