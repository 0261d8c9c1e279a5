// The warp-level bf16 tensor-core product and exact splits of fp32 values into bf16 parts.
//
// A warp multiplies A [16, 16] by B [16, 8] and adds into C [16, 8] in fp32. With g = lane / 4 and t = lane % 4 a lane holds
//   A: a0 = (g, 2t..2t+1)  a1 = (g + 8, 2t..2t+1)  a2 = (g, 2t+8..2t+9)  a3 = (g + 8, 2t+8..2t+9)
//   B: b0 = (2t..2t+1, g)  b1 = (2t+8..2t+9, g)
//   C: c0, c1 = (g, 2t..2t+1)  c2, c3 = (g + 8, 2t..2t+1)
// two bf16 values a register, the lower index in the lower half. (PTX ISA, mma.m16n8k16.)
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace firesteel {

__device__ inline void MmaBf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of bf16 in shared memory as registers of an operand: lane l gives the address of row l % 8 of matrix
// l / 8. A row of A starts at (lane % 16, lane / 16 * 8).
__device__ inline void LoadMatrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
// The same with every matrix transposed: rows of memory become columns of the operand.
__device__ inline void LoadMatricesTransposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

// Two bf16 values times two powers of two in turn, each product exact within bf16's range.
__device__ inline uint32_t ScalePair(uint32_t pair, uint32_t offset_pair, uint32_t scale_pair) {
  uint32_t out;
  asm("{ .reg .b32 v; mul.rn.bf16x2 v, %1, %2; mul.rn.bf16x2 %0, v, %3; }"
      : "=r"(out)
      : "r"(pair), "r"(offset_pair), "r"(scale_pair));
  return out;
}

// 2^(byte - 127) as a bf16 pair; byte 0 is the subnormal 2^-127.
__device__ inline uint32_t E8M0Pair(uint32_t byte) {
  const uint32_t bits = byte == 0 ? 0x0040U : (byte == 255 ? 0x7fc0U : byte << 7);
  return bits | (bits << 16);
}

__device__ inline uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline float LowBf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float HighBf16(uint32_t pair) { return __uint_as_float(pair & 0xffff0000U); }

// (low, high) as the sum of kParts bf16 pairs, the largest first. Three parts hold all 24 bits of an fp32 mantissa, so
// a product with an exact bf16 factor loses nothing before the accumulator.
template <int kParts>
__device__ void SplitBf16(float low, float high, uint32_t (&part)[kParts]) {
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    part[i] = PackBf16(low, high);
    low -= LowBf16(part[i]);
    high -= HighBf16(part[i]);
  }
}

}  // namespace firesteel
