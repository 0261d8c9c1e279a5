// The lightning indexer: scores every visible compressed entry for a row and keeps the best `top_k`, exactly.
//
//   score_j = sum_h w_h * ReLU(q_h . k_j),  w_h = weights_proj(x)_h * head_dim^-0.5 * heads^-0.5
// Ties go to the lower entry; the kept entries are listed in ascending order, so attention's order of summation is fixed.
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"
#include "kernels/ops/kv_record.h"
#include "kernels/ops/step_meta.h"

namespace firesteel {

class Stream;

struct IndexerArgs {
  ConstRows q;             // [rows, heads * keys.width], rotated
  const float* weight;     // [rows, heads] weights_proj output, unscaled
  KvPages keys;            // index key per compressed entry
  const int32_t* visible;  // [rows] entries that the row sees
  RowMeta meta;
  SlotTables slots;
  MutableSparseRows out;  // physical rows of the kept entries
  int32_t* chosen;        // [rows, out.width] the same as absolute entry numbers; may be null
  float* scores;          // [score_rows, max_entries] scratch of the CUDA column
  LiveCount live;
  int32_t rows;
  int32_t score_rows;
  int32_t max_entries;  // `visible` never exceeds it
  int32_t heads;
  int32_t top_k;
  int32_t context_group;
  int32_t entries_per_block;
};

void IndexerCpu(Stream& stream, const IndexerArgs& args);
void IndexerCuda(Stream& stream, const IndexerArgs& args);

}  // namespace firesteel
