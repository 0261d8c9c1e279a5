// Typed options of one engine. Printed at start; unknown names are refused by whoever parses them.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/core/dtype.h"
#include "kernels/core/status.h"

namespace firesteel {

enum class DeviceKind { kCpu, kCuda };
enum class CacheDtype { kFp32, kBf16, kFp8 };

const char* DeviceKindName(DeviceKind kind);   // "cpu", "cuda"
const char* CacheDtypeName(CacheDtype dtype);  // "fp32", "bf16", "fp8"
// What a program takes when its user names none: fp32 on a CPU, fp8 on a GPU.
CacheDtype DefaultCacheDtype(DeviceKind device);
Result<DeviceKind> ParseDeviceKind(const std::string& text);
Result<CacheDtype> ParseCacheDtype(const std::string& text);

// Storage of the rows that operations hand to each other: kF32 or kBf16. The residual streams, logits and scores are fp32
// with either.
const char* ActivationDtypeName(DType dtype);     // "fp32", "bf16"
DType DefaultActivationDtype(DeviceKind device);  // fp32 on a CPU, bf16 on a GPU
// "fp32", "bf16", or "auto" for the device's default.
Result<DType> ParseActivationDtype(const std::string& text, DeviceKind device);

inline constexpr int32_t kDraftLengthFromCheckpoint = -1;  // the checkpoint's block size
inline constexpr int32_t kDraftLengthAuto = -2;            // chosen from the measured cost table

struct EngineOptions {
  std::string model_dir;
  DeviceKind device = DeviceKind::kCpu;
  std::string drafter = "dspark";  // "dspark" or "none"
  int32_t draft_length = kDraftLengthFromCheckpoint;
  CacheDtype cache_dtype = CacheDtype::kFp32;
  DType activations = DType::kF32;   // or kBf16
  int32_t threads = 0;               // CPU workers; 0: one per core the process may use
  int32_t max_sequences = 16;        // sequences that run at the same time (slots)
  int32_t max_batched_tokens = 512;  // target rows in one step
  int32_t prefill_chunk = 256;       // prompt rows of one sequence in one step
  int32_t max_model_len = 0;         // positions; 0: the checkpoint's max_position_embeddings
  // Capacity of the context cache; 0: max_sequences full-length sequences, on a GPU as many again for cached prefixes, at
  // most 1 GiB on a CPU and what memory_fraction leaves on a GPU. When one sequence of the
  // checkpoint's length does not fit and max_model_len is 0, the length limit is lowered to what fits.
  int64_t cache_tokens = 0;
  // Of a GPU's memory, for weights, buffers and automatic caches together.
  double memory_fraction = 0.9;
  int32_t max_queue = 256;   // requests waiting for a slot; more are refused
  bool prefix_cache = true;  // share the caches of equal prompt beginnings; false: recompute them
  bool graphs = true;        // replay captured steps; false: run every step eagerly

  Status Validate() const;
};

}  // namespace firesteel
