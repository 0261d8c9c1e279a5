// The scheduler's invariants as one check: run when idle in debug builds and after every step in tests.
#pragma once

#include "engine/sched/scheduler.h"
#include "kernels/core/status.h"

namespace firesteel {

// Internal names the first broken invariant. Valid between any two calls of the scheduler.
Status CheckInvariants(const Scheduler& scheduler);

}  // namespace firesteel
