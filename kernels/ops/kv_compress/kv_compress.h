// The DeepSeek-V4 compressor: every `ratio` tokens become one cache entry by channel-wise softmax pooling.
//
// Token t has kv_t and score_t + ape[t mod ratio], `width` channels each, or 2 * width with overlap: entry j then pools
// tokens of group j - 1 through the first half of the channels and tokens of group j through the second half; group -1
// contributes nothing. The pooled row is RMS-normed, rotated at position j * ratio and encoded.
//
// Rows of tokens before this step come from the slot's ring, rows of this step from the projections; both hold the same
// fp32 values, so how a sequence was cut into steps cannot change an entry. The ring keeps the newest `ring` tokens
// by absolute position, enough that rejected rows never overwrite what an open group still needs.
//
// The ring belongs to a slot, so another slot that starts behind a shared prefix cannot see it. With overlap the first
// group of a context block needs the last group of the block before: those rows are kept once more in the tail of the
// context block they belong to, and the first group always reads them there, never from the ring. Without overlap no
// group reaches over a block's border.
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"
#include "kernels/ops/kv_record.h"
#include "kernels/ops/rope/rope.h"
#include "kernels/ops/step_meta.h"

namespace firesteel {

class Stream;

// The last `ratio` tokens of every context block, as the next group pools them: the first `width` channels of kv and of
// score with ape. Null without overlap.
struct CompressTail {
  float* kv;     // [context blocks, ratio, width]
  float* score;  // [context blocks, ratio, width]
};

struct KvCompressArgs {
  const float* kv;     // [rows, channels]; channels = width * (overlap ? 2 : 1)
  const float* score;  // [rows, channels], without ape
  const float* ape;    // [ratio, channels]
  float* ring_kv;      // [slots, ring, channels]
  float* ring_score;   // [slots, ring, channels], with ape
  CompressTail tail;
  const uint16_t* weight;    // [width] bf16 norm weight
  const int32_t* entry_row;  // [rows] physical row of the entry this row completes; -1 none
  RowMeta meta;
  SequenceMeta sequences;
  SlotTables slots;  // block tables of the context group, whose block_tokens is a multiple of ratio
  int32_t context_group;
  RopeTable rope;
  KvPages pages;  // width = pages.width
  LiveCount live;
  int32_t rows;
  int32_t ratio;
  int32_t ring;
  bool overlap;
  float eps;
};

void KvCompressCpu(Stream& stream, const KvCompressArgs& args);
void KvCompressCuda(Stream& stream, const KvCompressArgs& args);

}  // namespace firesteel
