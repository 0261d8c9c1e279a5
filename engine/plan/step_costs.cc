#include "engine/plan/step_costs.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace firesteel {
namespace {

// Value at `batch` of a quantity known at the ascending `sizes`; at(i) gives it for sizes[i].
template <typename At>
double Interpolate(const std::vector<int32_t>& sizes, int32_t batch, At at) {
  FIRESTEEL_CHECK(!sizes.empty(), "no step costs were measured");
  const auto above = std::lower_bound(sizes.begin(), sizes.end(), batch);
  if (above == sizes.begin()) return at(size_t{0});
  if (above == sizes.end()) return at(sizes.size() - 1);
  const size_t hi = static_cast<size_t>(above - sizes.begin());
  const double share = static_cast<double>(batch - sizes[hi - 1]) / (sizes[hi] - sizes[hi - 1]);
  return at(hi - 1) + share * (at(hi) - at(hi - 1));
}

}  // namespace

double StepCosts::TargetUs(int32_t batch, int32_t drafts) const {
  const size_t columns = static_cast<size_t>(draft_length) + 1;
  return Interpolate(sequences, batch, [&](size_t i) {
    return target_us[i * columns + static_cast<size_t>(drafts)];
  });
}

double StepCosts::ProposeUs(int32_t batch) const {
  return Interpolate(sequences, batch, [&](size_t i) { return propose_us[i]; });
}

}  // namespace firesteel
