// The main of a test binary whose operations run on a GPU: everything a test allocates, and the stack it runs on, is
// managed memory, so that kernels can follow pointers to its vectors and local variables.
//
// 1. What is allocated before main comes from malloc and stays out of a GPU's reach; so do constants in the program file.
// 2. Nothing here is ever given back to CUDA, and the process ends without running destructors: the driver may be gone
//    before the last object with static storage is.
#include <cuda_runtime.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <new>

#include "tests/support/catch_session.h"

namespace {

constexpr size_t kArenaBytes = size_t{2} << 30;
constexpr size_t kStackBytes = size_t{64} << 20;
// Blocks are powers of two, aligned to their size up to a chunk. A chunk holds blocks of one size.
constexpr int kSmallestBits = 4;
constexpr int kChunkBits = 16;
constexpr int kLargestBits = 31;
constexpr size_t kChunkBytes = size_t{1} << kChunkBits;

class ManagedArena {
 public:
  // Managed memory where host and GPU may touch it at the same time, else pinned memory, which a GPU reads at the same
  // addresses. Without a GPU the arena stays empty and malloc serves: listing the tests works, opening a device says what
  // is missing.
  void Reserve() {
    int concurrent = 0;
    void* memory = nullptr;
    if (cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0) != cudaSuccess) {
      return;
    }
    if (concurrent == 0 || cudaMallocManaged(&memory, kArenaBytes) != cudaSuccess) {
      if (cudaMallocHost(&memory, kArenaBytes) != cudaSuccess) return;
    }
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t aligned = (begin + kChunkBytes - 1) & ~(uintptr_t{kChunkBytes} - 1);
    const std::lock_guard<std::mutex> lock(mutex_);
    base_ = aligned;
    end_ = begin + kArenaBytes;
    next_ = aligned;
  }

  // Null when there is no room. REQUIRES: `alignment` is a power of two.
  void* Allocate(size_t bytes, size_t alignment) {
    const size_t room = std::max({bytes, alignment, size_t{1} << kSmallestBits});
    const std::lock_guard<std::mutex> lock(mutex_);
    if (base_ == 0) {
      const size_t step = std::max(alignment, size_t{1} << kSmallestBits);
      return std::aligned_alloc(step, (room + step - 1) & ~(step - 1));
    }
    const int bits = static_cast<int>(std::bit_width(room - 1));
    return bits > kLargestBits ? nullptr : Take(bits);
  }

  void Free(void* pointer) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (address < base_ || address >= end_) return std::free(pointer);
    Push(bits_of_chunk_[(address - base_) >> kChunkBits], address);
  }

 private:
  struct FreeBlock {
    FreeBlock* next;
  };

  void Push(int bits, uintptr_t address) {
    auto* block = reinterpret_cast<FreeBlock*>(address);
    block->next = free_[bits];
    free_[bits] = block;
  }

  void* Take(int bits) {
    if (free_[bits] == nullptr && !Carve(bits)) return nullptr;
    FreeBlock* block = free_[bits];
    free_[bits] = block->next;
    return block;
  }

  // One chunk cut into blocks, or as many chunks as one block takes.
  bool Carve(int bits) {
    const size_t block = size_t{1} << bits;
    const size_t taken = std::max(block, kChunkBytes);
    if (end_ - next_ < taken) return false;
    bits_of_chunk_[(next_ - base_) >> kChunkBits] = static_cast<uint8_t>(bits);
    for (size_t at = 0; at < taken; at += block) Push(bits, next_ + at);
    next_ += taken;
    return true;
  }

  std::mutex mutex_;
  uintptr_t base_ = 0;
  uintptr_t end_ = 0;
  uintptr_t next_ = 0;
  FreeBlock* free_[kLargestBits + 1] = {};
  uint8_t bits_of_chunk_[kArenaBytes >> kChunkBits] = {};
};

// Without a constructor that runs, so that it serves from the first allocation of the program on.
constinit ManagedArena arena;

void* AllocateOrThrow(size_t bytes, size_t alignment) {
  if (void* pointer = arena.Allocate(bytes, alignment)) return pointer;
  throw std::bad_alloc();
}

// makecontext() passes integers only, so what the session needs is here.
struct Session {
  int argc;
  char** argv;
  int result;
  ucontext_t main;
  ucontext_t context;
};
constinit Session session{};

void RunSession() { session.result = firesteel::RunCatchSession(session.argc, session.argv); }

}  // namespace

void* operator new(size_t bytes) { return AllocateOrThrow(bytes, 1); }
void* operator new[](size_t bytes) { return AllocateOrThrow(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return AllocateOrThrow(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return AllocateOrThrow(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* pointer) noexcept { arena.Free(pointer); }
void operator delete[](void* pointer) noexcept { arena.Free(pointer); }
void operator delete(void* pointer, size_t) noexcept { arena.Free(pointer); }
void operator delete[](void* pointer, size_t) noexcept { arena.Free(pointer); }
void operator delete(void* pointer, std::align_val_t) noexcept { arena.Free(pointer); }
void operator delete[](void* pointer, std::align_val_t) noexcept { arena.Free(pointer); }
void operator delete(void* pointer, size_t, std::align_val_t) noexcept { arena.Free(pointer); }
void operator delete[](void* pointer, size_t, std::align_val_t) noexcept { arena.Free(pointer); }

int main(int argc, char** argv) {
  arena.Reserve();
  session.argc = argc;
  session.argv = argv;
  session.result = EXIT_FAILURE;
  // Another stack for this thread, not another thread: a thread's control block would lie on its stack, and the kernel does
  // not wait on futexes in managed memory.
  getcontext(&session.context);
  session.context.uc_stack.ss_sp = arena.Allocate(kStackBytes, kChunkBytes);
  session.context.uc_stack.ss_size = kStackBytes;
  session.context.uc_link = &session.main;
  makecontext(&session.context, RunSession, 0);
  swapcontext(&session.main, &session.context);
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(session.result);
}
