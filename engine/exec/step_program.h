// One whole step as a straight line, the same for capture, replay and eager runs. It takes the shape only: what changes
// between steps sits in device memory at fixed addresses, so nothing of it can be captured by value.
#pragma once

#include "engine/drafters/drafter.h"
#include "engine/exec/step_buffers.h"
#include "engine/models/target_model.h"
#include "engine/plan/step_shape.h"
#include "kernels/core/device.h"

namespace firesteel {

struct StepProgram {
  Device& device;
  StepBuffers& buffers;
  TargetModel& target;
  Drafter& drafter;
};

// Into `stream`: the device's, or one that only looks at the operations.
void EnqueueStep(const StepShape& shape, StepProgram& program, Stream& stream);

// Its two halves: metadata, target pass and verification; then what the drafter does with the result.
TargetOut EnqueueTarget(StepContext& context, StepProgram& program);
void EnqueueDraft(StepContext& context, StepProgram& program, const TargetOut& out);

}  // namespace firesteel
