#include "engine/sched/batch_policy.h"

#include "kernels/core/math.h"

namespace firesteel {

void GrantRows(std::span<const RowDemand> demands, const BatchLimits& limits,
               std::vector<RowGrant>* grants) {
  grants->clear();
  int32_t left = limits.row_budget;
  const int32_t count = static_cast<int32_t>(demands.size());
  for (int32_t i = 0; i < count; ++i) {
    const RowDemand& demand = demands[static_cast<size_t>(i)];
    if (!demand.decode || demand.rows > left) continue;
    grants->push_back({.demand = i, .rows = demand.rows});
    left -= demand.rows;
  }
  for (int32_t i = 0; i < count && left > 0; ++i) {
    const RowDemand& demand = demands[static_cast<size_t>(i)];
    if (demand.decode) continue;
    const int32_t rows = Min(Min(demand.rows, limits.prefill_chunk), left);
    grants->push_back({.demand = i, .rows = rows});
    left -= rows;
  }
}

}  // namespace firesteel
