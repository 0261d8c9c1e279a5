#include "engine/exec/step_program.h"

#include "kernels/core/launch.h"
#include "kernels/ops/verify/verify.h"

namespace firesteel {

void EnqueueStep(const StepShape& shape, StepProgram& program) {
  const StepMeta& meta = program.buffers.meta();
  StepContext context{program.device.stream(), program.device.kernels(), shape, meta};
  Launch(context.stream, context.ops.step_prepare, program.buffers.PrepareArgs(shape));
  const TargetOut out = program.target.Enqueue(context);
  Launch(context.stream, context.ops.verify,
         VerifyArgs{out.logits, meta.sequences, meta.rows.token, meta.slots, meta.results,
                    meta.logprobs, &meta.live->sequences, shape.sequences, meta.verify_scratch});
  program.drafter.EnqueueCommit(context, out.features);
  program.drafter.EnqueuePropose(context);
}

}  // namespace firesteel
