// Attention of each row over listed cache rows of one or two pools, with a sink (K == V, one shared key head).
//
//   s_t = scale * q_h . k_t;   o_h = sum_t e^(s_t - M) k_t / (sum_t e^(s_t - M) + e^(sink_h - M))
// over the first `valid` indices of each list, window first, in list order. Entries at or past `valid` are never read,
// whatever the padded width holds. A row without keys gives zero. One fixed order of summation per (row, head): the
// result does not depend on the batch.
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"
#include "kernels/ops/kv_record.h"
#include "kernels/ops/step_meta.h"

namespace firesteel {

class Stream;

struct SparseAttentionArgs {
  ConstRows q;     // [rows, heads * head_dim]
  Rows out;        // [rows, heads * head_dim]
  KvPages window;  // width == head_dim
  SparseRows window_rows;
  KvPages extra;  // compressed entries; ignored when extra_rows.valid is null
  SparseRows extra_rows;
  const float* sink;  // [heads] raw logits
  LiveCount live;     // rows of whole lists
  int32_t rows;
  int32_t rows_per_list;  // query rows that share one index row: 1, or the draft block length
  int32_t heads;
  int32_t head_dim;
  float scale;
};

void SparseAttentionCpu(Stream& stream, const SparseAttentionArgs& args);
void SparseAttentionCuda(Stream& stream, const SparseAttentionArgs& args);

}  // namespace firesteel
