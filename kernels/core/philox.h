// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), keyed by what is being drawn
// and never by where: (seed, absolute position, purpose). A draw is therefore the same in any batch, slot, rank or chunk.
#pragma once

#include <cstdint>

#include "kernels/core/math.h"

namespace firesteel {

enum class DrawPurpose : uint32_t {
  kDraft = 1,   // proposal of the drafter at a position
  kAccept = 2,  // acceptance test of a draft at a position
  kTarget = 3,  // residual, bonus or plain sample of the target at a position
};

struct PhiloxBlock {
  uint32_t word[4];
};

FIRESTEEL_HOST_DEVICE inline PhiloxBlock Philox(uint64_t key, uint64_t counter_high,
                                                uint64_t counter_low) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter_low);
  uint32_t c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high);
  uint32_t c3 = static_cast<uint32_t>(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53U} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57U} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c0 = n0;
    c1 = static_cast<uint32_t>(p1);
    c2 = n2;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return PhiloxBlock{{c0, c1, c2, c3}};
}

// Block `index` of the stream (seed, position, purpose).
FIRESTEEL_HOST_DEVICE inline PhiloxBlock DrawBlock(uint64_t seed, int64_t position,
                                                   DrawPurpose purpose, uint32_t index) {
  return Philox(seed, (static_cast<uint64_t>(purpose) << 32) | index,
                static_cast<uint64_t>(position));
}

// Uniform in (0, 1): 23 bits, centred so that neither end is hit and log() is safe. A 24th bit would make the largest
// sum round up to 2^24, that is to 1.
FIRESTEEL_HOST_DEVICE inline float UniformFromWord(uint32_t word) {
  return (static_cast<float>(word >> 9) + 0.5F) * 0x1p-23F;
}

}  // namespace firesteel
