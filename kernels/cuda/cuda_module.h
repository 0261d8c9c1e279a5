// What libfiresteel_cuda.so exports: one C entry that hands out a table of functions. Nothing else of the module is
// visible, and including this needs nothing of CUDA.
//
// 1. Program and module come from one build. The two numbers at the head of the table catch a stale file; they are read
//    before any other member.
// 2. The module stays loaded until the process ends: kernels, graphs and static objects of the driver refer to it.
#pragma once

#include <cstdint>

#include "kernels/core/device.h"
#include "kernels/core/status.h"

namespace firesteel {

inline constexpr char kCudaModuleFile[] = "libfiresteel_cuda.so";
inline constexpr char kCudaModuleEntry[] = "FiresteelCudaModule";
// Raised whenever Device, Stream, Graph or an argument struct of the kernel table changes its layout.
inline constexpr uint32_t kCudaModuleVersion = 5;

struct CudaModuleError {
  StatusCode code;
  char message[1024];  // zero-terminated
};

struct CudaModule {
  uint32_t version;             // kCudaModuleVersion of the module's build
  uint32_t kernel_table_bytes;  // sizeof(KernelTable) of the module's build
  // `ordinal` is the GPU's number among the visible ones. The caller owns the device; null fills *error.
  Device* (*create_device)(int32_t ordinal, CudaModuleError* error);
};

using CudaModuleEntry = const CudaModule* (*)();

}  // namespace firesteel
