// Copies from device to shared memory that a thread does not wait for. Those of 16 bytes bypass the L1 cache; those of 4 do not
// and are for what no kernel writes.
#pragma once

#include <cstdint>

namespace firesteel {

__device__ inline void CopyAsync16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}

__device__ inline void CopyAsync4(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}

// Ends a group of the calling thread's copies, and waits until all but its last kPending groups have arrived.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void WaitForCopyGroups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// The calling thread's own copies; a barrier makes them visible to others.
__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Starts bringing a line to the L2 cache.
__device__ inline void PrefetchL2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// A vector that is read once: no use for a line of the L1 cache. The compiler leaves it where it is.
__device__ inline uint4 LoadOnce16(const void* global) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(global));
  return v;
}

}  // namespace firesteel
