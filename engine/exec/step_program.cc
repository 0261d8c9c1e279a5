#include "engine/exec/step_program.h"

#include "kernels/core/launch.h"
#include "kernels/ops/verify/verify.h"

namespace firesteel {

void EnqueueStep(const StepShape& shape, StepProgram& program, Stream& stream) {
  StepContext context{stream, program.device.kernels(), shape, program.buffers.meta()};
  const TargetOut out = EnqueueTarget(context, program);
  EnqueueDraft(context, program, out);
}

TargetOut EnqueueTarget(StepContext& context, StepProgram& program) {
  const StepMeta& meta = context.meta;
  Launch(context.stream, context.ops.step_prepare, program.buffers.PrepareArgs(context.shape));
  const TargetOut out = program.target.Enqueue(context);
  Launch(context.stream, context.ops.verify,
         VerifyArgs{out.logits, meta.sequences, meta.rows.token, meta.slots, meta.results,
                    meta.logprobs, &meta.live->sequences, context.shape.sequences,
                    meta.verify_scratch});
  return out;
}

void EnqueueDraft(StepContext& context, StepProgram& program, const TargetOut& out) {
  program.drafter.EnqueueCommit(context, out.features);
  program.drafter.EnqueuePropose(context);
}

}  // namespace firesteel
