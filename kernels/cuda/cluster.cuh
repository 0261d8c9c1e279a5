// Blocks of a thread-block cluster: their barrier, in two halves, and writes to each other's shared memory.
//
// A block writes to another one after a barrier that follows the start of both; what it wrote before a barrier is seen after it.
// All threads of all blocks of the cluster take part in every barrier.
#pragma once

#include <cstdint>

namespace firesteel {

__device__ inline void ArriveAtCluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// The first arrival: nothing has been written yet that another block is to see.
__device__ inline void StartCluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void WaitForCluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Puts `value` where block `rank` of the cluster has what `own` is in this block's shared memory.
__device__ inline void StoreToRank(float* own, uint32_t rank, float value) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(own));
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "st.shared::cluster.f32 [there], %2;\n}" ::"r"(address),
      "r"(rank), "f"(value)
      : "memory");
}
// The same for four values at once, at an address that is a multiple of 16.
__device__ inline void StoreToRank(float* own, uint32_t rank, float4 value) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(own));
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5};\n}" ::"r"(address),
      "r"(rank), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
}

}  // namespace firesteel
