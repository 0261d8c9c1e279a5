#include "engine/api/engine_options.h"

#include "engine/plan/step_result.h"

namespace firesteel {

const char* DeviceKindName(DeviceKind kind) { return kind == DeviceKind::kCpu ? "cpu" : "cuda"; }

const char* CacheDtypeName(CacheDtype dtype) {
  switch (dtype) {
    case CacheDtype::kFp32: return "fp32";
    case CacheDtype::kBf16: return "bf16";
    case CacheDtype::kFp8: return "fp8";
  }
  return "unknown";
}

CacheDtype DefaultCacheDtype(DeviceKind device) {
  return device == DeviceKind::kCuda ? CacheDtype::kFp8 : CacheDtype::kFp32;
}

Result<DeviceKind> ParseDeviceKind(const std::string& text) {
  if (text == "cpu") return DeviceKind::kCpu;
  if (text == "cuda") return DeviceKind::kCuda;
  return InvalidArgument("device is '" + text + "', needs 'cpu' or 'cuda'");
}

Result<CacheDtype> ParseCacheDtype(const std::string& text) {
  if (text == "fp32") return CacheDtype::kFp32;
  if (text == "bf16") return CacheDtype::kBf16;
  if (text == "fp8") return CacheDtype::kFp8;
  return InvalidArgument("kv-cache-dtype is '" + text + "', needs 'fp32', 'bf16' or 'fp8'");
}

const char* ActivationDtypeName(DType dtype) { return dtype == DType::kF32 ? "fp32" : "bf16"; }

DType DefaultActivationDtype(DeviceKind device) {
  return device == DeviceKind::kCuda ? DType::kBf16 : DType::kF32;
}

Result<DType> ParseActivationDtype(const std::string& text, DeviceKind device) {
  if (text == "auto") return DefaultActivationDtype(device);
  if (text == "fp32") return DType::kF32;
  if (text == "bf16") return DType::kBf16;
  return InvalidArgument("activations is '" + text + "', needs 'auto', 'fp32' or 'bf16'");
}

namespace {

Status CheckRange(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status::Ok();
  return InvalidArgument(std::string(name) + " is " + std::to_string(value) + ", needs " +
                         std::to_string(low) + ".." + std::to_string(high));
}

}  // namespace

Status EngineOptions::Validate() const {
  if (model_dir.empty()) return InvalidArgument("model is empty, needs a checkpoint directory");
  if (drafter != "dspark" && drafter != "none") {
    return InvalidArgument("drafter is '" + drafter + "', needs 'dspark' or 'none'");
  }
  FIRESTEEL_RETURN_IF_ERROR(
      CheckRange("draft-length", draft_length, kDraftLengthAuto, kMaxDraftLength));
  if (activations != DType::kF32 && activations != DType::kBf16) {
    return InvalidArgument(std::string("activations is ") + DTypeName(activations) +
                           ", needs F32 or BF16");
  }
  FIRESTEEL_RETURN_IF_ERROR(CheckRange("threads", threads, 0, 1024));
  FIRESTEEL_RETURN_IF_ERROR(CheckRange("max-sequences", max_sequences, 1, 4096));
  FIRESTEEL_RETURN_IF_ERROR(CheckRange("max-batched-tokens", max_batched_tokens, 1, 1 << 20));
  FIRESTEEL_RETURN_IF_ERROR(CheckRange("prefill-chunk", prefill_chunk, 1, 1 << 20));
  FIRESTEEL_RETURN_IF_ERROR(CheckRange("max-model-len", max_model_len, 0, 1 << 24));
  FIRESTEEL_RETURN_IF_ERROR(CheckRange("cache-tokens", cache_tokens, 0, int64_t{1} << 40));
  if (!(memory_fraction > 0.0 && memory_fraction <= 1.0)) {
    return InvalidArgument("memory-fraction is " + std::to_string(memory_fraction) +
                           ", needs a number above 0 and up to 1");
  }
  FIRESTEEL_RETURN_IF_ERROR(CheckRange("max-queue", max_queue, 0, 1 << 20));
  return Status::Ok();
}

}  // namespace firesteel
