// What a rank reserves besides its weights: sized against the device's memory, then carved.
#pragma once

#include <memory>

#include "engine/exec/memory_plan.h"
#include "engine/exec/step_buffers.h"

namespace firesteel {

// The plan for `device`, whose free memory is what the weights left. Where the options give no cache capacity, the caches
// take every slot at full length and, with the prefix cache, as much again for prefixes, as far as memory_fraction of the
// device's memory allows. Errors name what does not fit and the options that make it smaller. Binds target and drafter to
// addresses that do not exist: BindMemory must follow.
Result<MemoryPlan> PlanRankMemory(const EngineOptions& options, Device& device, TargetModel& target,
                                  Drafter& drafter);

// Carves everything of the plan and binds target and drafter to it. Check arena.status() afterwards.
std::unique_ptr<StepBuffers> BindMemory(DeviceArena& arena, const MemoryPlan& plan,
                                        bool verify_scratch, TargetModel& target, Drafter& drafter);

}  // namespace firesteel
