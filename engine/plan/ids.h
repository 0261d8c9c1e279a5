// Distinct integer types for the things that plans and schedules count. They do not convert into each other.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace firesteel {

template <typename Tag, typename Rep>
struct StrongId {
  Rep value = Rep(-1);
  friend constexpr auto operator<=>(const StrongId&, const StrongId&) = default;
  constexpr bool valid() const { return value != Rep(-1); }
};

using SlotId = StrongId<struct SlotIdTag, int32_t>;  // dense row in every per-sequence device table
using BlockId = StrongId<struct BlockIdTag, int32_t>;  // block of one cache group's pool
using StepId = StrongId<struct StepIdTag, int64_t>;    // 0, 1, 2, ... per engine
using RequestId =
    StrongId<struct RequestIdTag, uint64_t>;  // chosen by the submitter, unique while live

}  // namespace firesteel

template <typename Tag, typename Rep>
struct std::hash<firesteel::StrongId<Tag, Rep>> {
  size_t operator()(const firesteel::StrongId<Tag, Rep>& id) const noexcept {
    return std::hash<Rep>()(id.value);
  }
};
