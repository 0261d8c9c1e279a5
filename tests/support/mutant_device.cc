#include "tests/support/mutant_device.h"

#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/ops/draft_prepare/draft_prepare.h"
#include "kernels/ops/sparse_attention/sparse_attention.h"
#include "kernels/ops/verify/sampling_math.h"
#include "kernels/ops/verify/sequence_result.h"
#include "kernels/ops/verify/verify.h"

namespace firesteel {
namespace {

class MutantDevice final : public Device {
 public:
  explicit MutantDevice(const KernelTable& table)
      : inner_(CreateCpuDevice(DefaultThreads())), table_(table) {}

  const KernelTable& kernels() const override { return table_; }
  Stream& stream() override { return inner_->stream(); }
  void* Allocate(int64_t bytes) override { return inner_->Allocate(bytes); }
  void Free(void* pointer) override { inner_->Free(pointer); }
  bool reads_host_memory() const override { return inner_->reads_host_memory(); }
  DeviceMemory memory() const override { return inner_->memory(); }
  std::string Describe() const override { return "mutant " + inner_->Describe(); }

 private:
  std::unique_ptr<Device> inner_;
  KernelTable table_;
};

}  // namespace

std::unique_ptr<Device> CreateMutantDevice(const KernelTable& table) {
  return std::make_unique<MutantDevice>(table);
}

void AttendCausallyInDraftBlocks(Stream& stream, const SparseAttentionArgs& args) {
  const int32_t block = args.rows_per_list;
  if (block == 1) return SparseAttentionCpu(stream, args);
  // One list per row; row k loses the block keys after its own.
  const int32_t width = args.window_rows.width;
  std::vector<int32_t> index(static_cast<size_t>(args.rows) * static_cast<size_t>(width));
  std::vector<int32_t> valid(static_cast<size_t>(args.rows));
  for (int32_t row = 0; row < args.rows; ++row) {
    const int32_t list = row / block;
    for (int32_t t = 0; t < width; ++t) {
      index[static_cast<size_t>(row * width + t)] = args.window_rows.index[list * width + t];
    }
    const int32_t all = args.window_rows.valid[list];
    valid[static_cast<size_t>(row)] = all == 0 ? 0 : all - block + 1 + row % block;
  }
  SparseAttentionArgs causal = args;
  causal.rows_per_list = 1;
  causal.window_rows = {index.data(), valid.data(), width};
  SparseAttentionCpu(stream, causal);
}

void AttendToPaddedWidth(Stream& stream, const SparseAttentionArgs& args) {
  if (args.rows_per_list == 1) return SparseAttentionCpu(stream, args);
  // Padding entries of the index are zero-filled: cache row 0, as the faulty kernels of the field read them.
  const int32_t width = args.window_rows.width;
  const int32_t lists = args.rows / args.rows_per_list;
  std::vector<int32_t> index(static_cast<size_t>(lists * width), 0);
  std::vector<int32_t> valid(static_cast<size_t>(lists), width);
  for (int32_t list = 0; list < lists; ++list) {
    for (int32_t t = 0; t < args.window_rows.valid[list]; ++t) {
      index[static_cast<size_t>(list * width + t)] = args.window_rows.index[list * width + t];
    }
  }
  SparseAttentionArgs padded = args;
  padded.window_rows = {index.data(), valid.data(), width};
  SparseAttentionCpu(stream, padded);
}

void DraftFromStaleWindowAfterHit(Stream& stream, const DraftPrepareArgs& a) {
  DraftPrepareCpu(stream, a);
  int32_t draft = 0;
  for (int32_t s = 0; s < a.padded_sequences; ++s) {
    if (a.sequences.propose[s] == 0) continue;
    const int32_t keys = a.draft.keys.valid[draft];
    int32_t* index = a.draft.keys.index + int64_t{draft} * a.draft.keys.width;
    ++draft;
    // Prompts run in one chunk here, so a later start is a hit.
    if (a.sequences.num_drafts[s] >= 0 || a.sequences.start[s] == 0) continue;
    const int32_t committed = keys - a.block;
    const int32_t own = a.sequences.num_rows[s];
    for (int32_t i = 0; i < committed - own; ++i) index[i] = i;
  }
}

void VerifyWithoutBreak(Stream&, const VerifyArgs& a) {
  for (int32_t s = 0; s < a.padded_sequences; ++s) {
    SequenceResult& result = a.results[s];
    result = SequenceResult{};
    const int32_t slot = a.sequences.slot[s];
    result.slot = slot;
    if (slot < 0) continue;
    const int32_t rows = a.sequences.num_logit_rows[s];
    const int32_t end = a.sequences.start[s] + a.sequences.num_rows[s];
    a.slots.length[slot] = end;
    if (rows == 0) continue;
    result.drafted = rows - 1;
    for (int32_t i = 0; i < rows; ++i) {
      const float* logits = a.logits + int64_t{a.sequences.first_logit_row[s] + i} * a.slots.vocab;
      result.tokens[result.num_tokens++] = ArgMax(logits, a.slots.vocab);
    }
    result.accepted = rows - 1;
    a.slots.last_token[slot] = result.tokens[result.num_tokens - 1];
  }
}

}  // namespace firesteel
