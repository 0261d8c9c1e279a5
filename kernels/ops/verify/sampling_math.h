// Definitions of the draws that verification and drafting share; cuda/row_sampling.cuh has them for a block of threads.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/core/philox.h"

namespace firesteel {

// First index of the largest value. NaN never wins.
inline int32_t ArgMax(const float* x, int32_t count) {
  int32_t best = 0;
  for (int32_t i = 1; i < count; ++i) {
    if (x[i] > x[best] || (std::isnan(x[best]) && !std::isnan(x[i]))) best = i;
  }
  return best;
}

FIRESTEEL_HOST_DEVICE inline float DrawUniform(uint64_t seed, int64_t position,
                                               DrawPurpose purpose) {
  return UniformFromWord(DrawBlock(seed, position, purpose, 0).word[0]);
}

// An index drawn with probability weight[i] / sum(weight), by an exponential race: the largest weight[i] / E_i with
// independent standard exponentials E_i keyed by i. REQUIRES: some weight is positive.
inline int32_t DrawIndex(const float* weight, int32_t count, uint64_t seed, int64_t position,
                         DrawPurpose purpose) {
  int32_t best = -1;
  float best_key = 0.0F;
  PhiloxBlock block{};
  for (int32_t i = 0; i < count; ++i) {
    if (i % 4 == 0) block = DrawBlock(seed, position, purpose, static_cast<uint32_t>(i / 4) + 1);
    if (!(weight[i] > 0.0F)) continue;
    const float key = weight[i] / -std::log(UniformFromWord(block.word[i % 4]));
    if (best < 0 || key > best_key) {
      best = i;
      best_key = key;
    }
  }
  return best < 0 ? ArgMax(weight, count) : best;
}

}  // namespace firesteel
