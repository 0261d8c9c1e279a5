// The drafter that proposes nothing: K = 0.
#pragma once

#include "engine/drafters/drafter.h"

namespace firesteel {

class NoneDrafter final : public Drafter {
 public:
  const DraftSpec& spec() const override { return spec_; }
  int64_t window_bytes_per_block(int32_t) const override { return 0; }
  WeightTraffic weight_traffic() const override { return {}; }
  int64_t cache_traffic(int32_t, int32_t) const override { return 0; }
  void set_expert_trace(std::span<int32_t* const>) override {}
  void Bind(DeviceArena&, const StepLimits&, const TargetModel::Caches&) override {}
  void EnqueuePrepare(StepContext&) override {}
  void EnqueueCommit(StepContext&, const ConstRows&) override {}
  void EnqueuePropose(StepContext&) override {}

 private:
  const DraftSpec spec_{};
};

}  // namespace firesteel
