// What models and drafters may see of a step: the stream, the kernel table, the padded shape and views of the persistent
// metadata. Never the plan, never a host value that changes between steps.
#pragma once

#include <cstdint>

#include "engine/plan/step_shape.h"
#include "kernels/core/kernel_table.h"
#include "kernels/core/tensor.h"
#include "kernels/ops/step_meta.h"
#include "kernels/ops/verify/sequence_result.h"

namespace firesteel {

class Stream;

// Views of one rank's persistent step buffers. Addresses are constant after start-up.
struct StepMeta {
  SlotTables slots;
  LiveCounts* live;  // [1]
  RowMeta rows;
  SequenceMeta sequences;
  int32_t* logit_rows;  // [logit rows]
  MutableSparseRows window;
  CompressorMeta compressors[kMaxCompressors];
  SequenceResult* results;  // [sequences]
  LogprobRecord* logprobs;  // [logit rows]
  float* verify_scratch;    // [sequences, vocab]; null where the CPU column runs
  int32_t window_group;
  int32_t context_group;
  int32_t window_tokens;
};

struct StepContext {
  Stream& stream;
  const KernelTable& ops;
  const StepShape& shape;
  const StepMeta& meta;
};

// What a target leaves behind for verification and drafting.
struct TargetOut {
  const float* logits = nullptr;  // [logit rows, vocab]
  ConstRows features;             // [target rows, taps * hidden]; empty without taps
};

}  // namespace firesteel
