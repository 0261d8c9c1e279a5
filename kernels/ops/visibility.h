// Who sees what: the one definition of visible keys, used by index builders, oracles and tests alike.
//
// Positions are absolute. A range is half open: [begin, end).
#pragma once

#include <cstdint>

#include "kernels/core/math.h"

namespace firesteel {

struct KeyRange {
  int32_t begin;
  int32_t end;
  FIRESTEEL_HOST_DEVICE constexpr int32_t size() const { return end - begin; }
};

// A target row at position p sees itself and the window - 1 positions before it.
FIRESTEEL_HOST_DEVICE constexpr KeyRange CausalWindow(int32_t p, int32_t window) {
  return {Max(0, p - window + 1), p + 1};
}

// Every row of a draft block of `length` rows whose anchor sits at `anchor` sees the same keys: the last `window`
// committed positions (all before the anchor) and the whole block, later rows included. DeepSeek-V4's DSpark stages.
FIRESTEEL_HOST_DEVICE constexpr KeyRange SharedBlockWindow(int32_t anchor, int32_t length,
                                                           int32_t window) {
  return {Max(0, anchor - window), anchor + length};
}

// Compressed entries of ratio r that a row at position p sees: groups that are complete at p.
FIRESTEEL_HOST_DEVICE constexpr int32_t VisibleEntries(int32_t p, int32_t ratio) {
  return (p + 1) / ratio;
}

}  // namespace firesteel
