// Which instruction sets Highway compiles for. Include before any Highway header.
//
// SSE2/SSE4 (baseline), AVX2 and AVX-512 on x86-64, NEON on aarch64. The vector-length-agnostic SVE targets are left out:
// register tiles are arrays of vectors, which sizeless types cannot form.
#pragma once

#include <hwy/detect_targets.h>

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
