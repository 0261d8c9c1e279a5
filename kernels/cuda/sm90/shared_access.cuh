// Small Hopper instructions that the attention kernels share: asynchronous copies, transposed stores.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace firesteel::sm90 {

constexpr float kLog2e = 1.4426950408889634F;

__device__ __forceinline__ void CopyAsync16(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared), "l"(global) : "memory");
}

// Two 8x8 tiles of bf16 pairs, each stored transposed: lane l's pairs of a tile are (row l / 4, columns 2 (l % 4) and + 1);
// lane 8 i + j supplies the address of the 16 bytes that hold column j of tile i.
__device__ __forceinline__ void StoreTransposed2(uint32_t shared, uint32_t r0, uint32_t r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};\n" ::"r"(shared),
               "r"(r0), "r"(r1)
               : "memory");
}

// Four 8x8 tiles of bf16 pairs as they are: lane l's pairs of a tile are (row l / 4, columns 2 (l % 4) and + 1); lane
// 8 i + j supplies the address of the 16 bytes that hold row j of tile i.
__device__ __forceinline__ void StoreTiles4(uint32_t shared, uint32_t r0, uint32_t r1, uint32_t r2,
                                            uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(shared),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&v);
}

// Past the L1 cache: nothing is read twice, and a kernel that started early must not find an old line there.
__device__ __forceinline__ uint4 LoadStreaming(const void* global) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(global));
  return v;
}

__device__ __forceinline__ void StoreShared16(uint32_t shared, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(shared), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace firesteel::sm90
