#include "engine/models/deepseek/deepseek_lane.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/core/math.h"

namespace firesteel {

Rows CarveRows(DeviceArena& arena, const std::string& name, DType dtype, int64_t rows,
               int64_t cols) {
  return {arena.Carve(name, rows * cols * DTypeBytes(dtype)), cols, dtype};
}

LaneBuffers CarveLane(DeviceArena& arena, const std::string& name, const DeepseekConfig& c,
                      const LaneSizes& sizes) {
  const int64_t rows = sizes.rows;
  const int64_t pairs = rows * sizes.experts_per_token;
  const auto floats = [&](const char* what, int64_t count) {
    return arena.Carve<float>(name + "." + what, count);
  };
  const auto activations = [&](const char* what, int64_t count, int64_t cols) {
    return CarveRows(arena, name + "." + what, sizes.activations, count, cols);
  };
  const auto ints = [&](const char* what, int64_t count) {
    return arena.Carve<int32_t>(name + "." + what, count);
  };
  LaneBuffers b{};
  b.streams = CarveRows(arena, name + ".streams", DType::kF32, rows, int64_t{c.streams} * c.hidden);
  b.mix = floats("mix", rows * (2 + c.streams) * c.streams);
  b.post = floats("post", rows * c.streams);
  b.comb = floats("comb", rows * c.streams * c.streams);
  const int64_t q_cols = int64_t{c.heads} * c.head_dim;
  b.x = activations("x", rows, c.hidden);
  b.f = activations("f", rows, c.hidden);
  b.q_low = activations("q_low", rows, c.q_rank);
  b.q = activations("q", rows, q_cols);
  b.kv = activations("kv", rows, c.head_dim);
  b.attn = activations("attn", rows, q_cols);
  b.o_low = activations("o_low", rows, int64_t{c.o_groups} * c.o_rank);
  b.gate_logits = floats("gate_logits", rows * sizes.experts);
  b.expert = ints("expert", pairs);
  b.expert_weight = floats("expert_weight", pairs);
  b.groups.offset = ints("expert_offset", sizes.experts + 1);
  b.groups.pair_row = ints("pair_row", pairs);
  b.groups.pair_choice = ints("pair_choice", pairs);
  b.groups.pair_of = ints("pair_of", pairs);
  b.pair_gate = activations("pair_gate", pairs, c.expert_inner);
  b.pair_up = activations("pair_up", pairs, c.expert_inner);
  b.pair_out = activations("pair_out", pairs, c.hidden);
  b.shared_gate = activations("shared_gate", rows, c.expert_inner);
  b.shared_up = activations("shared_up", rows, c.expert_inner);
  b.shared_out = activations("shared_out", rows, c.hidden);
  if (!sizes.compressors) return b;
  b.compress_kv = floats("compress_kv", rows * 2 * c.head_dim);
  b.compress_score = floats("compress_score", rows * 2 * c.head_dim);
  b.index_q = activations("index_q", rows, int64_t{c.index_heads} * c.index_dim);
  b.index_weight = floats("index_weight", rows * c.index_heads);
  b.index_rows.width = RoundUp(c.index_top_k, 128);
  b.index_rows.index = ints("index_rows", rows * b.index_rows.width);
  b.index_rows.valid = ints("index_valid", rows);
  b.max_entries = sizes.max_entries;
  b.index_scores = floats("index_scores", int64_t{kIndexScoreRows} * sizes.max_entries);
  return b;
}

std::vector<float> RopeFrequencies(const DeepseekConfig& c, bool compressed) {
  const double theta = compressed ? c.compress_rope_theta : c.rope_theta;
  const int32_t half = c.rope_dim / 2;
  std::vector<float> frequencies(static_cast<size_t>(half));
  double low = 0.0;
  double high = 0.0;
  const bool yarn = compressed && c.yarn.enabled;
  if (yarn) {
    const auto correction = [&](double rotations) {
      return c.rope_dim *
             std::log(c.yarn.original_positions / (2.0 * std::numbers::pi * rotations)) /
             (2.0 * std::log(theta));
    };
    low = std::max(std::floor(correction(c.yarn.beta_fast)), 0.0);
    high = std::min(std::ceil(correction(c.yarn.beta_slow)), static_cast<double>(c.rope_dim - 1));
  }
  for (int32_t i = 0; i < half; ++i) {
    const float plain =
        1.0F / static_cast<float>(std::pow(theta, 2.0 * i / static_cast<double>(c.rope_dim)));
    if (yarn) {
      const float ramp =
          static_cast<float>(std::clamp((i - low) / std::max(high - low, 1e-3), 0.0, 1.0));
      frequencies[static_cast<size_t>(i)] = plain / c.yarn.factor * ramp + plain * (1.0F - ramp);
    } else {
      frequencies[static_cast<size_t>(i)] = plain;
    }
  }
  return frequencies;
}

RopeTable CarveRopeTable(DeviceArena& arena, const std::string& name, const DeepseekConfig& c,
                         bool compressed, int32_t positions) {
  const std::vector<float> frequencies = RopeFrequencies(c, compressed);
  const int64_t half = c.rope_dim / 2;
  std::vector<float> cos(static_cast<size_t>(positions * half));
  std::vector<float> sin(cos.size());
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t i = 0; i < half; ++i) {
      // The angle is rounded to fp32 first: that is what the checkpoints were trained with.
      const float angle = static_cast<float>(p) * frequencies[static_cast<size_t>(i)];
      cos[static_cast<size_t>(p * half + i)] = std::cos(angle);
      sin[static_cast<size_t>(p * half + i)] = std::sin(angle);
    }
  }
  const auto place = [&](const char* what, const std::vector<float>& values) {
    const int64_t bytes = static_cast<int64_t>(values.size()) * 4;
    return static_cast<const float*>(arena.Place(name + what, values.data(), bytes));
  };
  return RopeTable{place(".cos", cos), place(".sin", sin), c.rope_dim};
}

}  // namespace firesteel
