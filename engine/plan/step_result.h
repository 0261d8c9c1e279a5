// The result records of a step, as the scheduler sees them.
#pragma once

#include "kernels/ops/verify/sequence_result.h"  // IWYU pragma: export
