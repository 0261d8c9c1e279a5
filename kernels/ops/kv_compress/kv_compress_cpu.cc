#include "kernels/ops/kv_compress/kv_compress.h"

#include <cmath>
#include <cstring>

#include "kernels/core/check.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/row_access.h"
#include "kernels/cpu/vector_ops.h"

namespace firesteel {
namespace {

struct Scratch {
  const float** value;  // [2 * ratio]
  const float** score;
  float* with_ape;  // [2 * ratio, width]
  float* pooled;    // [width]
  float* weight;    // [width]
};

// Offset of a token's row in the tail pool, or -1 when it is not among the last `ratio` tokens of its context block.
int64_t TailOffset(const KvCompressArgs& a, int64_t row, int32_t position) {
  const int32_t tokens = a.slots.block_tokens[a.context_group];
  const int32_t place = position % tokens - (tokens - a.ratio);
  if (!a.overlap || place < 0) return -1;
  const int64_t table = int64_t{a.meta.slot[row]} * a.slots.max_blocks[a.context_group];
  const int32_t block = a.slots.block_table[a.context_group][table + position / tokens];
  FIRESTEEL_DCHECK(block >= 0, "a token to compress has no context block");
  return (int64_t{block} * a.ratio + place) * a.pages.width;
}

// Points value[i] / score[i] at the `width` channels starting at `first_channel` of the token at `position`.
void LocateToken(const KvCompressArgs& a, int64_t row, int32_t position, int32_t first_channel,
                 int32_t i, const Scratch& s) {
  const int32_t width = a.pages.width;
  const int64_t channels = int64_t{width} * (a.overlap ? 2 : 1);
  const int32_t sequence = a.meta.sequence[row];
  const int32_t start = a.sequences.start[sequence];
  // Only a group before the row's own has its channels first; its tail is another block's.
  const int64_t tail = position < start && first_channel == 0 ? TailOffset(a, row, position) : -1;
  if (tail >= 0) {
    s.value[i] = a.tail.kv + tail;
    s.score[i] = a.tail.score + tail;
    return;
  }
  if (position < start) {
    const int64_t at =
        (int64_t{a.meta.slot[row]} * a.ring + position % a.ring) * channels + first_channel;
    s.value[i] = a.ring_kv + at;
    s.score[i] = a.ring_score + at;
    return;
  }
  const int64_t source = (a.sequences.first_row[sequence] + position - start) * channels;
  s.value[i] = a.kv + source + first_channel;
  float* sum = s.with_ape + int64_t{i} * width;
  const float* ape = a.ape + position % a.ratio * channels + first_channel;
  const float* score = a.score + source + first_channel;
  for (int32_t c = 0; c < width; ++c) sum[c] = score[c] + ape[c];
  s.score[i] = sum;
}

void CompressRow(const KvCompressArgs& a, int64_t row, const Scratch& s) {
  const int32_t width = a.pages.width;
  const int32_t group = (a.meta.position[row] + 1) / a.ratio - 1;
  const int32_t own = a.overlap ? a.ratio : 0;  // where this group's tokens start in the pool
  for (int32_t i = 0; i < own; ++i) {
    if (group == 0) {
      s.value[i] = s.score[i] = nullptr;
    } else {
      LocateToken(a, row, (group - 1) * a.ratio + i, 0, i, s);
    }
  }
  for (int32_t i = 0; i < a.ratio; ++i) {
    LocateToken(a, row, group * a.ratio + i, a.overlap ? width : 0, own + i, s);
  }
  SoftmaxPool(s.value, s.score, own + a.ratio, width, s.pooled);
  const float mean = SumOfSquares(s.pooled, width) / static_cast<float>(width);
  ScaleRow(s.pooled, 1.0F / std::sqrt(mean + a.eps), s.weight, width, s.pooled);
  RotateTail(a.rope, int64_t{group} * a.ratio, 1.0F, s.pooled + width - a.rope.rope);
  EncodeKvRow(a.pages, a.entry_row[row], s.pooled);
}

// Tail rows are kept for all blocks of a chunk, since any of them may be where another sequence starts.
void StoreTail(const KvCompressArgs& a, int64_t row) {
  const int32_t position = a.meta.position[row];
  const int64_t tail = TailOffset(a, row, position);
  if (tail < 0) return;
  const int32_t width = a.pages.width;
  const int64_t source = row * 2 * width;
  const float* ape = a.ape + int64_t{position % a.ratio} * 2 * width;
  std::memcpy(a.tail.kv + tail, a.kv + source, static_cast<size_t>(width) * 4);
  for (int32_t c = 0; c < width; ++c) a.tail.score[tail + c] = a.score[source + c] + ape[c];
}

// Keeps the newest `ring` tokens of each sequence; older rows of a long chunk would be overwritten anyway.
void StoreState(const KvCompressArgs& a, int64_t row) {
  const int32_t sequence = a.meta.sequence[row];
  const int32_t position = a.meta.position[row];
  const int32_t last = a.sequences.start[sequence] + a.sequences.num_rows[sequence] - 1;
  if (position <= last - a.ring) return;
  const int64_t channels = int64_t{a.pages.width} * (a.overlap ? 2 : 1);
  const int64_t at = (int64_t{a.meta.slot[row]} * a.ring + position % a.ring) * channels;
  std::memcpy(a.ring_kv + at, a.kv + row * channels, static_cast<size_t>(channels) * 4);
  const float* ape = a.ape + position % a.ratio * channels;
  for (int64_t c = 0; c < channels; ++c) {
    a.ring_score[at + c] = a.score[row * channels + c] + ape[c];
  }
}

}  // namespace

void KvCompressCpu(Stream& stream, const KvCompressArgs& a) {
  const int64_t rows = Min(*a.live, a.rows);
  PoolOf(stream).Run(rows, 4, [&](int64_t begin, int64_t end, WorkerScratch& w) {
    const int32_t width = a.pages.width;
    const int32_t pool = a.ratio * (a.overlap ? 2 : 1);
    Scratch s;
    s.value = reinterpret_cast<const float**>(w.Bytes(int64_t{pool} * 8));
    s.score = reinterpret_cast<const float**>(w.Bytes(int64_t{pool} * 8));
    s.with_ape = w.Floats(int64_t{pool} * width);
    s.pooled = w.Floats(width);
    s.weight = w.Floats(width);
    for (int32_t c = 0; c < width; ++c) s.weight[c] = Bf16ToFloat(a.weight[c]);
    for (int64_t row = begin; row < end; ++row) {
      if (a.entry_row[row] >= 0) CompressRow(a, row, s);
    }
  });
  // After all entries: a ring or tail row may still be read by an entry of this step.
  PoolOf(stream).Run(rows, 64, [&](int64_t begin, int64_t end, WorkerScratch&) {
    for (int64_t row = begin; row < end; ++row) {
      StoreTail(a, row);
      StoreState(a, row);
    }
  });
}

}  // namespace firesteel
