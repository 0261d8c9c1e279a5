#include "kernels/ops/visibility.h"

#include <algorithm>

#include "tests/support/catch.h"

namespace firesteel {
namespace {

TEST_CASE("a target row sees itself and the positions of its window", "[ops][visibility]") {
  for (int32_t window = 1; window <= 9; ++window) {
    for (int32_t p = 0; p < 40; ++p) {
      const KeyRange keys = CausalWindow(p, window);
      CHECK(keys.size() == std::min(window, p + 1));
      for (int32_t t = 0; t < 50; ++t) {
        const bool seen = t >= keys.begin && t < keys.end;
        CHECK(seen == (t <= p && t > p - window));
      }
    }
  }
}

TEST_CASE("a draft block sees the last committed positions and itself", "[ops][visibility]") {
  for (int32_t window = 1; window <= 9; ++window) {
    for (int32_t length = 1; length <= 6; ++length) {
      for (int32_t anchor = 0; anchor < 40; ++anchor) {
        const KeyRange keys = SharedBlockWindow(anchor, length, window);
        CHECK(keys.size() == std::min(window, anchor) + length);
        CHECK(keys.end == anchor + length);
        CHECK(keys.begin >= 0);
      }
    }
  }
}

TEST_CASE("an entry is visible from the last token of its group on", "[ops][visibility]") {
  for (const int32_t ratio : {1, 2, 4, 128}) {
    for (int32_t p = 0; p < 600; ++p) {
      int32_t complete = 0;
      while ((complete + 1) * ratio - 1 <= p) ++complete;
      CHECK(VisibleEntries(p, ratio) == complete);
    }
    CHECK(VisibleEntries(ratio - 1, ratio) == 1);
    if (ratio > 1) CHECK(VisibleEntries(ratio - 2, ratio) == 0);
  }
}

static_assert(CausalWindow(5, 128).begin == 0);
static_assert(SharedBlockWindow(900, 5, 128).size() == 133);

}  // namespace
}  // namespace firesteel
