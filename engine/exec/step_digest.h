// A number that stands for everything a step would enqueue: its operations and all of their arguments, addresses included.
//
// A captured step froze its arguments. When the digest of its shape is another one than at capture, a buffer moved or a
// value of the host that changes between steps was captured, and a replay would read the wrong memory.
#pragma once

#include <cstdint>

#include "engine/exec/step_program.h"

namespace firesteel {

// Enqueues nothing and needs no device. Equal in two processes only by chance: it covers addresses.
uint64_t StepDigest(const StepShape& shape, StepProgram& program);

}  // namespace firesteel
