#include "engine/exec/bench/case_buffers.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace firesteel {
namespace {

// Random content is drawn once for so many bytes and repeated by copies on the device: drawing gigabytes would take longer
// than measuring. Several megabytes are no period that a memory system could exploit.
constexpr int64_t kPatternBytes = int64_t{4} << 20;
constexpr int64_t kPatternPages = 64;

}  // namespace

int64_t WeightBytes(DType dtype, int64_t out, int64_t in) {
  switch (dtype) {
    case DType::kF8E4M3:
      return out * in + CeilDiv<int64_t>(out, CaseBuffers::kWeightBlock) *
                            CeilDiv<int64_t>(in, CaseBuffers::kWeightBlock);
    case DType::kF4E2M1x2: return out * in / 2 + out * in / 32;
    default: return out * in * DTypeBytes(dtype);
  }
}

float CaseBuffers::RandomValue() {
  // 24 random bits: every value is exact in fp32 and none is subnormal in bf16 or e4m3 after scaling.
  return static_cast<float>(static_cast<int32_t>(random_() >> 8) - (1 << 23)) * 0x1p-23F;
}

void* CaseBuffers::Tile(const std::string& name, const std::vector<std::byte>& pattern,
                        int64_t bytes) {
  auto* data = arena_.Carve<std::byte>(name, bytes);
  Stream& stream = device_.stream();
  int64_t filled = std::min(bytes, static_cast<int64_t>(pattern.size()));
  stream.CopyToDevice(data, pattern.data(), filled);
  while (filled < bytes) {
    const int64_t more = std::min(filled, bytes - filled);
    stream.CopyOnDevice(data + filled, data, more);
    filled += more;
  }
  return data;
}

Rows CaseBuffers::RandomRows(const std::string& name, int64_t rows, int64_t cols, DType dtype) {
  const int64_t bytes = rows * cols * DTypeBytes(dtype);
  const int64_t drawn = std::min(bytes, kPatternBytes);
  const auto& pattern = Pattern(name, drawn, [&](std::byte* out) {
    for (int64_t i = 0; i < drawn / DTypeBytes(dtype); ++i) {
      const float value = RandomValue();
      if (dtype == DType::kF32) {
        std::memcpy(out + i * 4, &value, 4);
      } else {
        const uint16_t narrow = FloatToBf16(value);
        std::memcpy(out + i * 2, &narrow, 2);
      }
    }
  });
  return {Tile(name, pattern, bytes), cols, dtype};
}

Weight CaseBuffers::RandomWeight(const std::string& name, DType dtype, int32_t out, int32_t in) {
  Weight weight;
  weight.dtype = dtype;
  weight.out = out;
  weight.in = in;
  const bool fp8 = dtype == DType::kF8E4M3;
  if (!fp8 && dtype != DType::kF4E2M1x2) {
    weight.data = RandomRows(name, out, in, dtype).data;
    return weight;
  }
  const int64_t bytes = int64_t{out} * in / (fp8 ? 1 : 2);
  const int64_t drawn = std::min(bytes, kPatternBytes);
  const auto& codes = Pattern(name, drawn, [&](std::byte* to) {
    for (int64_t i = 0; i < drawn; ++i) {
      uint32_t code = static_cast<uint32_t>(random_()) >> 24;
      if (fp8 && (code & 0x7fU) == 0x7fU) code ^= 1U;  // the two NaN codes
      to[i] = static_cast<std::byte>(code);
    }
  });
  weight.data = Tile(name, codes, bytes);
  weight.block = fp8 ? kWeightBlock : 0;
  // A half, one or two: sums over thousands of columns stay far from the limits of fp32 and bf16.
  const int64_t scale_bytes = WeightBytes(dtype, out, in) - bytes;
  const auto& scales = Pattern(name + " scales", scale_bytes, [&](std::byte* to) {
    for (int64_t i = 0; i < scale_bytes; ++i) to[i] = static_cast<std::byte>(126 + random_() % 3);
  });
  weight.scale = static_cast<const uint8_t*>(Tile(name + " scales", scales, scale_bytes));
  return weight;
}

KvPages CaseBuffers::RandomPages(const std::string& name, KvFormat format, int32_t width,
                                 int32_t rope, int32_t page_entries, int64_t pages) {
  KvPages pool;
  pool.page_bytes = KvPageBytes(format, width, rope, page_entries);
  pool.block_entries = page_entries;
  pool.width = width;
  pool.rope = rope;
  pool.format = format;
  const int64_t encoded = std::min(pages, kPatternPages);
  const auto& pattern = Pattern(name, encoded * pool.page_bytes, [&](std::byte* out) {
    KvPages host = pool;
    host.data = out;
    std::vector<float> values(static_cast<size_t>(width));
    for (int64_t row = 0; row < encoded * page_entries; ++row) {
      for (float& value : values) value = RandomValue();
      EncodeKvRow(host, row, values.data());
    }
  });
  pool.data = static_cast<std::byte*>(Tile(name, pattern, pages * pool.page_bytes));
  return pool;
}

std::vector<int32_t> CaseBuffers::Shuffled(int64_t count) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random_);
  return order;
}

std::vector<int32_t> CaseBuffers::Choose(int32_t count, int32_t chosen) {
  std::vector<int32_t> order = Shuffled(count);
  order.resize(static_cast<size_t>(chosen));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace firesteel
