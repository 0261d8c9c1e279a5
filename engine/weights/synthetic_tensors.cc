#include "engine/weights/synthetic_tensors.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/float_codec.h"
#include "kernels/core/math.h"

namespace firesteel {
namespace {

// No row of a matrix begins where another one does in the pattern: its size shares no large factor with theirs.
constexpr int64_t kPatternBytes = (int64_t{4} << 20) + 272;
constexpr int64_t kChunkBytes = int64_t{256} << 20;
constexpr int64_t kAlignment = 256;
constexpr int64_t kDistinctValues = int64_t{2} << 20;

// 2^-6 and 2^-5: sums over thousands of columns stay far from the limits of fp32 and bf16.
constexpr uint32_t kScaleByte = 121;

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

float SmallValue(uint32_t bits) {
  return (static_cast<float>(bits % 4096U) - 2047.5F) * (0.05F / 2048.0F);
}

template <typename T>
void Put(std::vector<std::byte>* bytes, size_t at, T value) {
  std::memcpy(bytes->data() + at, &value, sizeof(T));
}

}  // namespace

const SyntheticTensors::Pattern& SyntheticTensors::PatternOf(DType dtype) {
  Pattern& pattern = patterns_[dtype];
  if (pattern.data != nullptr) return pattern;
  const int64_t element = DTypeBytes(dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(kPatternBytes));
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(element)) {
    const auto bits = static_cast<uint32_t>(random_() >> 4);
    switch (dtype) {
      case DType::kF32: Put(&bytes, at, SmallValue(bits)); break;
      case DType::kBf16: Put(&bytes, at, FloatToBf16(SmallValue(bits))); break;
      // Magnitudes of an eighth to just under one.
      case DType::kF8E4M3:
        Put(&bytes, at, static_cast<uint8_t>((bits >> 8 & 0x80U) | (0x20U + bits % 24U)));
        break;
      case DType::kF8E8M0: Put(&bytes, at, static_cast<uint8_t>(kScaleByte + bits % 2U)); break;
      case DType::kF4E2M1x2: Put(&bytes, at, static_cast<uint8_t>(bits & 0xffU)); break;
      case DType::kI32: Put(&bytes, at, static_cast<int32_t>(bits % index_bound_)); break;
      case DType::kI64: Put(&bytes, at, static_cast<int64_t>(bits % index_bound_)); break;
    }
  }
  pattern.bytes = kPatternBytes;
  pattern.data = static_cast<const std::byte*>(Table("pattern", bytes.data(), kPatternBytes));
  return pattern;
}

std::byte* SyntheticTensors::Take(int64_t bytes) {
  const int64_t rounded = RoundUp(bytes, kAlignment);
  if (rounded > chunk_left_) {
    chunk_left_ = std::max(rounded, kChunkBytes);
    chunk_ = static_cast<std::byte*>(arena_.Carve("synthetic", chunk_left_));
  }
  std::byte* taken = chunk_;
  chunk_ += rounded;
  chunk_left_ -= rounded;
  return taken;
}

const void* SyntheticTensors::Tensor(const std::string& name, DType dtype,
                                     std::span<const int64_t> shape) {
  int64_t bytes = DTypeBytes(dtype);
  for (const int64_t extent : shape) bytes *= extent;
  if (EndsWith(name, "norm.weight")) {
    const std::vector<uint16_t> ones(static_cast<size_t>(bytes / 2), FloatToBf16(1.0F));
    return Table(name, ones.data(), bytes);
  }
  const Pattern& pattern = PatternOf(dtype);
  std::byte* to = Take(bytes);
  int64_t from = static_cast<int64_t>(random_()) % (pattern.bytes / 16) * 16;
  for (int64_t done = 0; done < bytes;) {
    const int64_t count = std::min(bytes - done, pattern.bytes - from);
    device_.stream().CopyOnDevice(to + done, pattern.data + from, count);
    done += count;
    from = 0;
  }
  return to;
}

const void* SyntheticTensors::Table(const std::string&, const void* data, int64_t bytes) {
  void* placed = Take(bytes);
  device_.stream().CopyToDevice(placed, data, bytes);
  return placed;
}

void FillPages(Device& device, const KvPages& pages, int64_t count) {
  const int64_t encoded =
      std::min(count, CeilDiv(kDistinctValues, int64_t{pages.width} * pages.block_entries));
  std::vector<std::byte> image(static_cast<size_t>(encoded * pages.page_bytes));
  KvPages host = pages;
  host.data = image.data();
  std::minstd_rand random(7);
  std::vector<float> row(static_cast<size_t>(pages.width));
  for (int64_t r = 0; r < encoded * pages.block_entries; ++r) {
    for (float& x : row) x = 20.0F * SmallValue(static_cast<uint32_t>(random() >> 4));
    EncodeKvRow(host, r, row.data());
  }
  Stream& stream = device.stream();
  const int64_t total = count * pages.page_bytes;
  int64_t done = encoded * pages.page_bytes;
  stream.CopyToDevice(pages.data, image.data(), done);
  while (done < total) {
    const int64_t more = std::min(done, total - done);
    stream.CopyOnDevice(pages.data + done, pages.data, more);
    done += more;
  }
}

}  // namespace firesteel
