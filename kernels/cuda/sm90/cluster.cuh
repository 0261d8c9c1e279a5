// Barriers in shared memory, and what the thread blocks of a cluster do with each other's.
//
// A barrier's phase ends when all expected arrivals have come; a waiter names the parity of the phase it waits for.
#pragma once

#include <cstdint>

namespace firesteel::sm90 {

__device__ __forceinline__ void InitBarrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals));
}
// After the last InitBarrier, by the thread that did them, before a block-wide barrier.
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
__device__ __forceinline__ void ArriveBarrier(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void WaitBarrier(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}

// All threads of the `threads` that share `id` (1..15); what they wrote to shared memory is visible to them afterwards.
__device__ __forceinline__ void NamedBarrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// For threads of the `threads` that do not wait themselves: those that call NamedBarrier do, and see what was written before.
__device__ __forceinline__ void ArriveNamedBarrier(int id, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// NamedBarrier, and whether `mine` is true for any of its threads.
__device__ __forceinline__ bool NamedBarrierAny(int id, int threads, bool mine) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "bar.red.or.pred q, %2, %3, p;\n"
      "selp.u32 %0, 1, 0, q;\n}\n"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(mine)), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}

// A barrier of all threads of the cluster in two parts; what they wrote to any block's shared memory before the first is
// visible after the second. Before a block touches another one's shared memory it must know that the other one has started.
__device__ __forceinline__ void ArriveCluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void WaitCluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}
__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}
// The address in block `rank` of the cluster that `shared` is in this block.
__device__ __forceinline__ uint32_t PeerAddress(uint32_t shared, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}
// Arrives at another block's barrier. Orders nothing: for "I have read my shared memory, you may write to it".
__device__ __forceinline__ void ArrivePeer(uint32_t peer_barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];\n" ::"r"(peer_barrier)
               : "memory");
}
// One arrival, and the phase ends only when `bytes` have come by StoreAsync too.
__device__ __forceinline__ void ExpectBytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Stores to another block's shared memory that count at a barrier there; whoever waits for its phase sees them.
__device__ __forceinline__ void StoreAsync(uint32_t peer, float value, uint32_t peer_barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];\n" ::"r"(
          peer),
      "f"(value), "r"(peer_barrier)
      : "memory");
}
__device__ __forceinline__ void StoreAsync4(uint32_t peer, float x, float y, float z, float w,
                                            uint32_t peer_barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];\n" ::"r"(peer),
      "f"(x), "f"(y), "f"(z), "f"(w), "r"(peer_barrier)
      : "memory");
}

// Registers a thread may use from here on; every warp of a warpgroup, in uniform control flow.
template <int kRegisters>
__device__ __forceinline__ void GrowRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void ShrinkRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

}  // namespace firesteel::sm90
