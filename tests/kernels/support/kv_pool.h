// A paged pool whose every byte starts as 0xff, which is NaN in all four record formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/ops/kv_record.h"

namespace firesteel {

class KvPool {
 public:
  KvPool(KvFormat format, int32_t width, int32_t rope, int32_t block_entries, int32_t blocks)
      : bytes_(static_cast<size_t>(KvPageBytes(format, width, rope, block_entries) * blocks),
               std::byte{0xff}) {
    pages_ = {bytes_.data(), KvPageBytes(format, width, rope, block_entries),
              block_entries, width,
              rope,          format};
  }
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  const KvPages& pages() const { return pages_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  void Write(int64_t row, const std::vector<float>& values) {
    EncodeKvRow(pages_, row, values.data());
  }
  std::vector<float> Read(int64_t row) const {
    std::vector<float> buffer(static_cast<size_t>(pages_.width));
    const float* values = DecodeKvRow(pages_, row, buffer.data());
    return std::vector<float>(values, values + pages_.width);
  }

 private:
  std::vector<std::byte> bytes_;
  KvPages pages_;
};

}  // namespace firesteel
