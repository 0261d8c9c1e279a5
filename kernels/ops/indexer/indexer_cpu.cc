#include "kernels/ops/indexer/indexer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/row_access.h"
#include "kernels/cpu/vector_ops.h"

namespace firesteel {
namespace {

int32_t EntryRow(const IndexerArgs& a, int32_t slot, int32_t entry) {
  const int32_t* table =
      a.slots.block_table[a.context_group] + int64_t{slot} * a.slots.max_blocks[a.context_group];
  return table[entry / a.entries_per_block] * a.entries_per_block + entry % a.entries_per_block;
}

struct Scratch {
  float* q;
  float* key;
  float* score;    // [max visible]
  int32_t* order;  // [max visible]
};

void Score(const IndexerArgs& a, int64_t row, int32_t visible, const Scratch& s) {
  const int32_t width = a.keys.width;
  const float* q = ReadRow(a.q, row, int64_t{a.heads} * width, s.q);
  const float scale = 1.0F / std::sqrt(static_cast<float>(width) * static_cast<float>(a.heads));
  const float* w = a.weight + row * a.heads;
  for (int32_t j = 0; j < visible; ++j) {
    const float* key = DecodeKvRow(a.keys, EntryRow(a, a.meta.slot[row], j), s.key);
    float total = 0.0F;
    for (int32_t h = 0; h < a.heads; ++h) {
      const float dot = Dot(q + int64_t{h} * width, key, width);
      total += w[h] * scale * Max(dot, 0.0F);
    }
    // NaN would break the ordering below; it can only come from a broken checkpoint and ranks last.
    s.score[j] = std::isnan(total) ? -std::numeric_limits<float>::infinity() : total;
  }
}

}  // namespace

void IndexerCpu(Stream& stream, const IndexerArgs& a) {
  const int64_t rows = Min(*a.live, a.rows);
  int32_t most = 1;
  for (int64_t row = 0; row < rows; ++row) most = Max(most, a.visible[row]);
  PoolOf(stream).Run(rows, 1, [&](int64_t begin, int64_t end, WorkerScratch& w) {
    Scratch s;
    s.q = w.Floats(int64_t{a.heads} * a.keys.width);
    s.key = w.Floats(a.keys.width);
    s.score = w.Floats(most);
    s.order = reinterpret_cast<int32_t*>(w.Floats(most));
    for (int64_t row = begin; row < end; ++row) {
      const int32_t visible = a.visible[row];
      int32_t kept = visible;
      for (int32_t j = 0; j < visible; ++j) s.order[j] = j;
      if (visible > a.top_k) {
        Score(a, row, visible, s);
        kept = a.top_k;
        std::nth_element(s.order, s.order + kept, s.order + visible, [&](int32_t x, int32_t y) {
          return s.score[x] != s.score[y] ? s.score[x] > s.score[y] : x < y;
        });
        std::sort(s.order, s.order + kept);
      }
      int32_t* out = a.out.index + row * a.out.width;
      for (int32_t i = 0; i < kept; ++i) out[i] = EntryRow(a, a.meta.slot[row], s.order[i]);
      a.out.valid[row] = kept;
      for (int32_t i = 0; a.chosen != nullptr && i < a.out.width; ++i) {
        a.chosen[row * a.out.width + i] = i < kept ? s.order[i] : -1;
      }
    }
  });
}

}  // namespace firesteel
