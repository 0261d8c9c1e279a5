// Fuzz target of the safetensors parser: any bytes give a Status or views inside the image.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/weights/safetensors.h"
#include "engine/weights/safetensors_header.h"
#include "kernels/core/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t byte_count) {
  const std::span<const std::byte> image(reinterpret_cast<const std::byte*>(bytes), byte_count);
  const auto tensors = firesteel::ParseSafetensors(image, "input");
  if (tensors.ok()) {
    size_t data_bytes = 0;
    for (const firesteel::StoredTensor& tensor : tensors.value()) {
      data_bytes += tensor.data.size();
      if (tensor.data.empty()) continue;
      FIRESTEEL_CHECK(tensor.data.data() >= image.data() && &tensor.data.back() <= &image.back(),
                      "tensor data lies outside the image");
    }
    FIRESTEEL_CHECK(data_bytes <= byte_count, "tensors share bytes");
  }
  // The same bytes as an index: its reader has no length field in front.
  const std::string_view text(reinterpret_cast<const char*>(bytes), byte_count);
  const auto index = firesteel::ReadShardIndex(text, "input");
  if (index.ok()) {
    for (const firesteel::ShardIndexEntry& entry : index.value()) {
      FIRESTEEL_CHECK(entry.file_name.find('/') == std::string::npos, "shard leaves its directory");
    }
  }
  return 0;
}
