// The first node of a step: applies the uploaded plan to the slot tables and derives all per-step metadata.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/step_meta.h"

namespace firesteel {

class Stream;

struct StepPrepareArgs {
  const std::byte* plan;     // one uploaded StepPlan blob
  int64_t new_slots_offset;  // byte offsets of its sections
  int64_t appends_offset;
  int64_t sequences_offset;
  int64_t tokens_offset;
  int64_t rules_offset;
  SlotTables slots;
  LiveCounts* live;  // [1]
  RowMeta rows;
  SequenceMeta sequences;
  int32_t* logit_rows;       // [logit_rows] target row behind each logit row; 0 in padding
  MutableSparseRows window;  // causal window of each row
  CompressorMeta compressors[kMaxCompressors];
  int32_t window_group;  // cache groups by role
  int32_t context_group;
  int32_t window_tokens;
  int32_t padded_rows;
  int32_t padded_sequences;
  int32_t padded_logit_rows;
};

void StepPrepareCpu(Stream& stream, const StepPrepareArgs& args);
void StepPrepareCuda(Stream& stream, const StepPrepareArgs& args);

}  // namespace firesteel
