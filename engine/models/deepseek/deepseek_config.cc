#include "engine/models/deepseek/deepseek_config.h"

#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "engine/plan/step_result.h"

namespace firesteel {
namespace {

using nlohmann::json;

// Reads fields of one JSON object; the first error sticks and names the field.
class FieldReader {
 public:
  FieldReader(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const Status& status() const { return status_; }

  void Fail(const std::string& field, const std::string& found, const std::string& needed) {
    if (status_.ok()) {
      status_ = InvalidArgument(where_ + ": " + field + " is " + found + ", needs " + needed);
    }
  }

  // The error of a reader of a nested object, which names its place itself.
  void Adopt(const Status& nested) {
    if (status_.ok()) status_ = nested;
  }

  int32_t Int(const std::string& field, int64_t low, int64_t high) {
    const json* value = Find(field, "an integer");
    if (value == nullptr) return 0;
    const std::string range = std::to_string(low) + ".." + std::to_string(high);
    if (!value->is_number_integer()) {
      Fail(field, value->dump(), "an integer in " + range);
      return 0;
    }
    const int64_t number = value->get<int64_t>();
    if (number < low || number > high) Fail(field, std::to_string(number), range);
    return static_cast<int32_t>(number);
  }

  int32_t IntOr(const std::string& field, int32_t fallback, int64_t low, int64_t high) {
    return Present(field) ? Int(field, low, high) : fallback;
  }

  float Positive(const std::string& field) {
    const json* value = Find(field, "a positive number");
    if (value == nullptr) return 0.0F;
    if (!value->is_number() || !(value->get<double>() > 0.0)) {
      Fail(field, value->dump(), "a positive number");
      return 0.0F;
    }
    return value->get<float>();
  }

  // The field must be absent or hold this value: the only one the engine implements.
  template <typename T>
  void Only(const std::string& field, const T& supported) {
    if (!Present(field)) return;
    const json expected = supported;
    if (object_[field] != expected) Fail(field, object_[field].dump(), expected.dump());
  }

  std::vector<int32_t> IntList(const std::string& field, int64_t low, int64_t high) {
    std::vector<int32_t> list;
    const json* value = Find(field, "a list of integers");
    if (value == nullptr) return list;
    if (!value->is_array()) {
      Fail(field, value->dump(), "a list of integers");
      return list;
    }
    for (const json& item : *value) {
      if (!item.is_number_integer() || item.get<int64_t>() < low || item.get<int64_t>() > high) {
        Fail(field + "[" + std::to_string(list.size()) + "]", item.dump(),
             std::to_string(low) + ".." + std::to_string(high));
        return list;
      }
      list.push_back(item.get<int32_t>());
    }
    return list;
  }

  bool Present(const std::string& field) const {
    const auto found = object_.find(field);
    return found != object_.end() && !found->is_null();
  }
  const json& operator[](const std::string& field) const { return object_.at(field); }

 private:
  const json* Find(const std::string& field, const std::string& needed) {
    if (Present(field)) return &object_.at(field);
    Fail(field, "missing", needed);
    return nullptr;
  }

  const json& object_;
  std::string where_;
  Status status_;
};

constexpr int32_t kMaxDimension = 1 << 20;

void ReadShape(FieldReader& r, DeepseekConfig* c) {
  c->vocab = r.Int("vocab_size", 2, 1 << 24);
  c->hidden = r.Int("hidden_size", 32, kMaxDimension);
  c->layers = r.Int("num_hidden_layers", 1, 1024);
  c->heads = r.Int("num_attention_heads", 1, 1024);
  c->head_dim = r.Int("head_dim", 32, 4096);
  c->rope_dim = r.Int("qk_rope_head_dim", 2, 4096);
  c->q_rank = r.Int("q_lora_rank", 32, kMaxDimension);
  c->o_groups = r.Int("o_groups", 1, 1024);
  c->o_rank = r.Int("o_lora_rank", 1, kMaxDimension);
  c->window = r.Int("sliding_window", 1, kMaxDimension);
  c->expert_inner = r.Int("moe_intermediate_size", 32, kMaxDimension);
  c->experts = r.Int("n_routed_experts", 1, 65536);
  c->experts_per_token = r.Int("num_experts_per_tok", 1, 64);
  c->routed_scaling = r.Positive("routed_scaling_factor");
  c->swiglu_limit = r.Positive("swiglu_limit");
  c->hash_layers = r.IntOr("num_hash_layers", 0, 0, 1024);
  c->index_heads = r.Int("index_n_heads", 1, 1024);
  c->index_dim = r.Int("index_head_dim", 32, 4096);
  c->index_top_k = r.Int("index_topk", 1, kMaxDimension);
  c->streams = r.Int("hc_mult", 1, 8);
  c->sinkhorn_iterations = r.Int("hc_sinkhorn_iters", 1, 1000);
  c->hyper_eps = r.Positive("hc_eps");
  c->norm_eps = r.Positive("rms_norm_eps");
  c->rope_theta = r.Positive("rope_theta");
  c->compress_rope_theta = r.Positive("compress_rope_theta");
  c->max_positions = r.Int("max_position_embeddings", 1, 1 << 24);
  r.Only("num_key_value_heads", 1);
  r.Only("n_shared_experts", 1);
  r.Only("scoring_func", "sqrtsoftplus");
  r.Only("topk_method", "noaux_tc");
  r.Only("norm_topk_prob", true);
  r.Only("tie_word_embeddings", false);
  r.Only("hidden_act", "silu");
  r.Only("attention_bias", false);
}

void ReadYarn(FieldReader& r, const std::string& path, DeepseekConfig* c) {
  if (!r.Present("rope_scaling")) return;
  const json& scaling = r["rope_scaling"];
  if (!scaling.is_object()) {
    r.Fail("rope_scaling", scaling.dump(), "an object or null");
    return;
  }
  FieldReader yarn(scaling, path + ": rope_scaling");
  yarn.Only("type", "yarn");
  yarn.Only("rope_type", "yarn");
  if (!yarn.Present("type") && !yarn.Present("rope_type")) yarn.Fail("type", "missing", "\"yarn\"");
  c->yarn.enabled = true;
  c->yarn.factor = yarn.Positive("factor");
  c->yarn.original_positions = yarn.Int("original_max_position_embeddings", 1, 1 << 24);
  if (yarn.Present("beta_fast")) c->yarn.beta_fast = yarn.Positive("beta_fast");
  if (yarn.Present("beta_slow")) c->yarn.beta_slow = yarn.Positive("beta_slow");
  r.Adopt(yarn.status());
}

void ReadQuantization(FieldReader& r, const std::string& path, DeepseekConfig* c) {
  std::string expert = c->linear_dtype == DType::kBf16 ? "bf16" : "fp4";
  if (r.Present("quantization_config")) {
    const json& object = r["quantization_config"];
    if (!object.is_object()) {
      r.Fail("quantization_config", object.dump(), "an object or null");
      return;
    }
    FieldReader q(object, path + ": quantization_config");
    q.Only("quant_method", "fp8");
    q.Only("fmt", "e4m3");
    q.Only("scale_fmt", "ue8m0");
    const std::vector<int32_t> block = q.IntList("weight_block_size", 32, 4096);
    if (block.size() != 2 || block[0] != block[1] || block[0] % 32 != 0) {
      q.Fail("weight_block_size", object.value("weight_block_size", json()).dump(),
             "two equal multiples of 32");
    } else {
      c->fp8_block = block[0];
    }
    r.Adopt(q.status());
    c->linear_dtype = DType::kF8E4M3;
    expert = "fp4";  // what a checkpoint with this scheme means when it names no expert type
    if (q.Present("expert_dtype") && object["expert_dtype"].is_string()) {
      expert = object["expert_dtype"].get<std::string>();
    }
  }
  if (r.Present("expert_dtype") && r["expert_dtype"].is_string()) {
    expert = r["expert_dtype"].get<std::string>();
  }
  if (expert == "fp4") {
    c->expert_dtype = DType::kF4E2M1x2;
  } else if (expert == "bf16") {
    c->expert_dtype = DType::kBf16;
  } else {
    r.Fail("expert_dtype", expert, "\"fp4\" or \"bf16\"");
  }
}

void ReadDspark(FieldReader& r, DeepseekConfig* c) {
  const std::vector<int32_t> ratios = r.IntList("compress_ratios", 0, 128);
  DsparkConfig& d = c->dspark;
  d.block = r.IntOr("dspark_block_size", 0, 0, kMaxDraftLength);
  if (d.block > 0) {
    d.noise_token = r.Int("dspark_noise_token_id", 0, c->vocab - 1);
    d.markov_rank = r.Int("dspark_markov_rank", 1, kMaxDimension);
    d.experts = r.IntOr("dspark_n_routed_experts", c->experts, 1, 65536);
    d.experts_per_token = r.IntOr("dspark_num_experts_per_tok", c->experts_per_token, 1, 64);
    d.target_layers = r.IntList("dspark_target_layer_ids", 0, c->layers - 1);
    d.stages = static_cast<int32_t>(d.target_layers.size());
    if (d.stages == 0) r.Fail("dspark_target_layer_ids", "empty", "a layer per draft stage");
    if (d.experts_per_token > d.experts) {
      // Named as the file names it.
      const bool own = r.Present("dspark_num_experts_per_tok");
      r.Fail(own ? "dspark_num_experts_per_tok" : "num_experts_per_tok",
             std::to_string(d.experts_per_token), "at most " + std::to_string(d.experts));
    }
  }
  if (static_cast<int32_t>(ratios.size()) != c->layers + d.stages) {
    r.Fail("compress_ratios", std::to_string(ratios.size()) + " entries",
           std::to_string(c->layers) + " layers + " + std::to_string(d.stages) + " draft stages");
    return;
  }
  for (size_t i = 0; i < ratios.size(); ++i) {
    const bool stage = static_cast<int32_t>(i) >= c->layers;
    if (stage ? ratios[i] != 0 : (ratios[i] != 0 && ratios[i] != 4 && ratios[i] != 128)) {
      r.Fail("compress_ratios[" + std::to_string(i) + "]", std::to_string(ratios[i]),
             stage ? "0 for a draft stage" : "0, 4 or 128");
    }
  }
  c->ratios.assign(ratios.begin(), ratios.begin() + c->layers);
}

// Relations between fields that the kernels rely on.
void CheckRelations(FieldReader& r, const DeepseekConfig& c) {
  const auto multiple = [&](const char* field, int32_t value, int32_t of) {
    if (value % of != 0)
      r.Fail(field, std::to_string(value), "a multiple of " + std::to_string(of));
  };
  multiple("hidden_size", c.hidden, 32);
  multiple("head_dim", c.head_dim, 16);
  multiple("qk_rope_head_dim", c.rope_dim, 2);
  multiple("q_lora_rank", c.q_rank, 32);
  multiple("moe_intermediate_size", c.expert_inner, 32);
  multiple("index_head_dim", c.index_dim, 16);
  multiple("num_attention_heads", c.heads, c.o_groups);
  multiple("o_lora_rank * o_groups", c.o_groups * c.o_rank, 32);
  if (c.rope_dim > c.head_dim || c.rope_dim > c.index_dim) {
    r.Fail("qk_rope_head_dim", std::to_string(c.rope_dim), "at most head_dim and index_head_dim");
  }
  if (c.experts_per_token > c.experts) {
    r.Fail("num_experts_per_tok", std::to_string(c.experts_per_token),
           "at most " + std::to_string(c.experts));
  }
}

}  // namespace

Result<DeepseekConfig> ParseDeepseekConfig(const ModelConfig& config) {
  const json document = json::parse(config.text, nullptr, false);
  if (!document.is_object()) return InvalidArgument(config.path + " is not a JSON object");
  DeepseekConfig c;
  FieldReader reader(document, config.path);
  ReadShape(reader, &c);
  FIRESTEEL_RETURN_IF_ERROR(reader.status());
  ReadYarn(reader, config.path, &c);
  ReadQuantization(reader, config.path, &c);
  ReadDspark(reader, &c);
  FIRESTEEL_RETURN_IF_ERROR(reader.status());
  CheckRelations(reader, c);
  FIRESTEEL_RETURN_IF_ERROR(reader.status());
  return c;
}

}  // namespace firesteel
