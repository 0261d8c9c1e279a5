#include "kernels/cuda/cuda_stream.h"
#include "kernels/ops/step_prepare/plan_records.h"
#include "kernels/ops/step_prepare/step_prepare.h"
#include "kernels/ops/visibility.h"

namespace firesteel {
namespace {

constexpr int32_t kSlotThreads = 1024;
constexpr int32_t kRowThreads = 128;

template <typename T>
__device__ const T* Section(const StepPrepareArgs& a, int64_t offset) {
  return reinterpret_cast<const T*>(a.plan + offset);
}

// By all threads of a block.
__device__ void StartSlot(const StepPrepareArgs& a, const PlanNewSlot& s) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int64_t slot = s.slot;
  if (thread == 0) {
    a.slots.length[slot] = s.length;
    a.slots.last_token[slot] = 0;
    a.slots.sampling[slot] = s.sampling;
  }
  if (s.rules >= 0) {
    static_assert(sizeof(SamplingRules) % sizeof(uint32_t) == 0);
    constexpr int32_t kWords = static_cast<int32_t>(sizeof(SamplingRules) / sizeof(uint32_t));
    const SamplingRules* rules = Section<SamplingRules>(a, a.rules_offset) + s.rules;
    const auto* from = reinterpret_cast<const uint32_t*>(rules);
    auto* to = reinterpret_cast<uint32_t*>(a.slots.rules + slot);
    for (int32_t i = thread; i < kWords; i += kSlotThreads) to[i] = from[i];
  }
  if (s.sampling.counts_tokens()) {
    const int32_t vocab = a.slots.vocab;
    for (int32_t t = thread; t < vocab; t += kSlotThreads) {
      a.slots.prompt_seen[slot * vocab + t] = 0;
      a.slots.output_count[slot * vocab + t] = 0;
    }
  }
  for (int32_t g = 0; g < a.slots.num_groups; ++g) {
    int32_t* table = a.slots.block_table[g] + slot * a.slots.max_blocks[g];
    for (int32_t b = thread; b < a.slots.max_blocks[g]; b += kSlotThreads) table[b] = -1;
  }
}

// One block: every append must find the tables of new slots cleared. The appends of a plan name distinct entries (the
// cache manager releases and reserves an entry at most once per step), so their order does not matter.
__global__ void __launch_bounds__(kSlotThreads)
    ApplySlotChanges(const __grid_constant__ StepPrepareArgs a) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const PlanHeader& header = *Section<PlanHeader>(a, 0);
  const PlanNewSlot* new_slots = Section<PlanNewSlot>(a, a.new_slots_offset);
  for (int32_t i = 0; i < header.num_new_slots; ++i) StartSlot(a, new_slots[i]);
  if (thread == 0) {
    *a.live = LiveCounts{header.num_rows,
                         header.num_sequences,
                         header.num_logit_rows,
                         0,
                         0,
                         header.skips_draft_commit != 0 ? 0 : header.num_rows};
  }
  __syncthreads();
  const PlanAppend* appends = Section<PlanAppend>(a, a.appends_offset);
  for (int32_t i = thread; i < header.num_appends; i += kSlotThreads) {
    const PlanAppend& p = appends[i];
    a.slots.block_table[p.group][int64_t{p.slot} * a.slots.max_blocks[p.group] + p.index] = p.block;
  }
}

// Physical cache row of an absolute entry index, or -1 where the table has no block.
__device__ int32_t PhysicalRow(const SlotTables& slots, int32_t group, int32_t slot, int32_t entry,
                               int32_t entries_per_block) {
  const int32_t index = entry / entries_per_block;
  if (index >= slots.max_blocks[group]) return -1;
  const int32_t block = slots.block_table[group][int64_t{slot} * slots.max_blocks[group] + index];
  return block < 0 ? -1 : block * entries_per_block + entry % entries_per_block;
}

// By all threads of a block.
__device__ void PrepareRow(const StepPrepareArgs& a, int32_t row, int32_t slot, int32_t position,
                           int32_t token, int32_t sequence) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t block_tokens = a.slots.block_tokens[a.window_group];
  const KeyRange keys = CausalWindow(position, a.window_tokens);
  int32_t* index = a.window.index + int64_t{row} * a.window.width;
  for (int32_t p = keys.begin + thread; p < keys.end; p += kRowThreads) {
    index[p - keys.begin] = PhysicalRow(a.slots, a.window_group, slot, p, block_tokens);
  }
  if (thread == 0) {
    a.rows.slot[row] = slot;
    a.rows.position[row] = position;
    a.rows.token[row] = token;
    a.rows.sequence[row] = sequence;
    a.rows.window_row[row] = PhysicalRow(a.slots, a.window_group, slot, position, block_tokens);
    a.window.valid[row] = keys.size();
  }
  for (const CompressorMeta& c : a.compressors) {
    if (c.ratio == 0) continue;
    const int32_t visible = VisibleEntries(position, c.ratio);
    if (thread == 0) {
      c.visible[row] = visible;
      c.entry_row[row] =
          (position + 1) % c.ratio != 0
              ? -1
              : PhysicalRow(a.slots, a.context_group, slot, visible - 1, c.entries_per_block);
    }
    if (c.all.width == 0) continue;
    int32_t* entries = c.all.index + int64_t{row} * c.all.width;
    for (int32_t j = thread; j < visible; j += kRowThreads) {
      entries[j] = PhysicalRow(a.slots, a.context_group, slot, j, c.entries_per_block);
    }
    if (thread == 0) c.all.valid[row] = visible;
  }
}

// What the sampling rules must know of the token of row `i` of a sequence. A decode row is not counted: its anchor was when
// it was emitted, and its drafts are if they are accepted.
__device__ void NoteToken(const StepPrepareArgs& a, const PlanSequence& p, int32_t i,
                          int32_t position, int32_t token) {
  const SlotSampling& sampling = a.slots.sampling[p.slot];
  // Rows run in any order here: of those that share an entry, the last one of the sequence writes it.
  if (sampling.num_bad_words > 0 && i + kRecentTokens >= p.num_rows) {
    a.slots.recent_tokens[int64_t{p.slot} * kRecentTokens + position % kRecentTokens] = token;
  }
  const bool decode = p.num_drafts >= 0;
  if (decode || !sampling.counts_tokens() || position < a.slots.length[p.slot]) return;
  const int64_t at = int64_t{p.slot} * a.slots.vocab + token;
  if (position < sampling.prompt_length) {
    a.slots.prompt_seen[at] = 1;
  } else {
    atomicAdd(&a.slots.output_count[at], 1);  // emitted before the sequence was preempted
  }
}

__device__ void PadRow(const StepPrepareArgs& a, int32_t row) {
  a.rows.slot[row] = -1;
  a.rows.position[row] = 0;
  a.rows.token[row] = 0;
  a.rows.sequence[row] = -1;
  a.rows.window_row[row] = -1;
  a.window.valid[row] = 0;
  for (const CompressorMeta& c : a.compressors) {
    if (c.ratio == 0) continue;
    c.visible[row] = 0;
    c.entry_row[row] = -1;
    if (c.all.width != 0) c.all.valid[row] = 0;
  }
}

// By all threads of a block.
__device__ void DeriveRow(const StepPrepareArgs& a, const PlanHeader& header, int32_t row) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  if (row >= header.num_rows) {
    if (thread == 0) PadRow(a, row);
    return;
  }
  const PlanSequence* planned = Section<PlanSequence>(a, a.sequences_offset);
  __shared__ int32_t owner;
  // Exactly one sequence has the row: a valid plan covers its rows without gaps.
  for (int32_t s = thread; s < header.num_sequences; s += kRowThreads) {
    const int32_t i = row - planned[s].first_row;
    if (i >= 0 && i < planned[s].num_rows) owner = s;
  }
  __syncthreads();
  const int32_t sequence = owner;
  const PlanSequence& p = planned[sequence];
  const int32_t i = row - p.first_row;
  const bool decode = p.num_drafts >= 0;
  const int32_t position = (decode ? a.slots.length[p.slot] : p.start) + i;
  int32_t token;
  if (!decode) {
    token = Section<int32_t>(a, a.tokens_offset)[row];
  } else if (i == 0) {
    token = a.slots.last_token[p.slot];
  } else {
    token = a.slots.draft_tokens[int64_t{p.slot} * a.slots.draft_length + i - 1];
  }
  PrepareRow(a, row, p.slot, position, token, sequence);
  if (thread == 0) NoteToken(a, p, i, position, token);
}

// By one thread.
__device__ void DeriveSequence(const StepPrepareArgs& a, const PlanHeader& header, int32_t s) {
  if (s >= header.num_sequences) {
    a.sequences.slot[s] = -1;
    a.sequences.num_rows[s] = 0;
    a.sequences.num_drafts[s] = -1;
    a.sequences.num_logit_rows[s] = 0;
    a.sequences.propose[s] = 0;
    a.sequences.next_token[s] = -1;
    return;
  }
  const PlanSequence& p = Section<PlanSequence>(a, a.sequences_offset)[s];
  a.sequences.slot[s] = p.slot;
  a.sequences.first_row[s] = p.first_row;
  a.sequences.num_rows[s] = p.num_rows;
  a.sequences.start[s] = p.num_drafts >= 0 ? a.slots.length[p.slot] : p.start;
  a.sequences.num_drafts[s] = p.num_drafts;
  a.sequences.first_logit_row[s] = p.first_logit_row;
  a.sequences.num_logit_rows[s] = p.num_logit_rows;
  a.sequences.propose[s] = p.propose;
  a.sequences.next_token[s] = p.next_token;
}

// By one thread.
__device__ void DeriveLogitRow(const StepPrepareArgs& a, const PlanHeader& header, int32_t at) {
  if (at >= header.num_logit_rows) {
    a.logit_rows[at] = 0;
    return;
  }
  const PlanSequence* planned = Section<PlanSequence>(a, a.sequences_offset);
  for (int32_t s = 0; s < header.num_sequences; ++s) {
    const PlanSequence& p = planned[s];
    const int32_t i = at - p.first_logit_row;
    if (i < 0 || i >= p.num_logit_rows) continue;
    a.logit_rows[at] = p.first_row + p.num_rows - p.num_logit_rows + i;
  }
}

// A block per padded row, then a thread per padded sequence and logit row. Reads the slot tables only, and those after
// the changes.
__global__ void __launch_bounds__(kRowThreads)
    DeriveMetadata(const __grid_constant__ StepPrepareArgs a) {
  const PlanHeader& header = *Section<PlanHeader>(a, 0);
  const int32_t block = static_cast<int32_t>(blockIdx.x);
  if (block < a.padded_rows) return DeriveRow(a, header, block);
  const int32_t item = (block - a.padded_rows) * kRowThreads + static_cast<int32_t>(threadIdx.x);
  if (item < a.padded_sequences) return DeriveSequence(a, header, item);
  const int32_t logit_row = item - a.padded_sequences;
  if (logit_row < a.padded_logit_rows) DeriveLogitRow(a, header, logit_row);
}

}  // namespace

void StepPrepareCuda(Stream& stream, const StepPrepareArgs& a) {
  const cudaStream_t handle = CudaStreamOf(stream);
  ApplySlotChanges<<<1, kSlotThreads, 0, handle>>>(a);
  const int32_t blocks =
      a.padded_rows + CeilDiv(a.padded_sequences + a.padded_logit_rows, kRowThreads);
  if (blocks == 0) return;
  DeriveMetadata<<<static_cast<uint32_t>(blocks), kRowThreads, 0, handle>>>(a);
}

}  // namespace firesteel
