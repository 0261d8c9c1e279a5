// The persistent inputs, slot tables and metadata of one rank, carved once; the StepMeta views never change afterwards.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/exec/step_context.h"
#include "engine/models/target_model.h"
#include "engine/plan/step_plan.h"
#include "kernels/core/arena.h"
#include "kernels/ops/step_prepare/step_prepare.h"

namespace firesteel {

struct StepBufferSizes {
  PlanLimits plan;
  StepLimits step;
  int32_t draft_length = 0;
  int32_t vocab = 0;
  int32_t positions = 0;  // positions a sequence may reach, look-ahead included
  int32_t window_tokens = 0;
  int32_t window_group = 0;
  int32_t context_group = 0;
  std::vector<int32_t> block_tokens;     // per cache group
  std::vector<int32_t> compress_ratios;  // TargetSpec
  std::vector<bool> list_all_entries;
  bool verify_scratch = false;  // the CPU column needs none
};

class StepBuffers {
 public:
  StepBuffers(DeviceArena& arena, const StepBufferSizes& sizes);

  const StepMeta& meta() const { return meta_; }
  std::byte* plan() { return plan_; }
  int64_t plan_bytes() const { return layout_.total_bytes; }

  // Arguments of the first node of a step of this shape.
  StepPrepareArgs PrepareArgs(const StepShape& shape) const;

 private:
  void CarveSlots(DeviceArena& arena, const StepBufferSizes& sizes);
  void CarveRows(DeviceArena& arena, const StepBufferSizes& sizes);

  StepPlan::Layout layout_;
  std::byte* plan_ = nullptr;
  StepMeta meta_{};
};

}  // namespace firesteel
