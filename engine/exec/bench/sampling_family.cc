// Verification of blocks whose drafts are all accepted, greedy and sampled with a nucleus: every row of logits is judged.
#include <string>
#include <utility>
#include <vector>

#include "engine/exec/bench/case_buffers.h"
#include "engine/exec/bench/kernel_families.h"
#include "kernels/core/launch.h"
#include "kernels/ops/verify/sequence_result.h"
#include "kernels/ops/verify/verify.h"

namespace firesteel {
namespace {

constexpr float kSure =
    20.0F;  // a logit so far above the others that its token is drawn and accepted
constexpr int32_t kPosition = 100;

// Blocks of sequences in slots of the same number. The draft behind row r is the token that the row is sure of, 7 r + 1 modulo
// the vocabulary.
VerifyArgs BuildArgs(CaseBuffers& buffers, int32_t sequences, int32_t rows_per_block, int32_t vocab,
                     const SlotSampling& sampling) {
  const int32_t drafts = rows_per_block - 1;
  const auto count = static_cast<size_t>(sequences);
  std::vector<int32_t> first(count);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < sequences; ++i) {
    first[static_cast<size_t>(i)] = i * rows_per_block;
    for (int32_t k = 0; k < drafts; ++k)
      tokens.push_back((7 * (i * rows_per_block + k) + 1) % vocab);
  }
  VerifyArgs args{};
  std::vector<int32_t> slot(count);
  for (int32_t i = 0; i < sequences; ++i) slot[static_cast<size_t>(i)] = i;
  args.sequences.slot = buffers.Upload("slot", slot);
  args.sequences.first_row = buffers.Upload("first row", first);
  args.sequences.num_rows = buffers.Upload("rows", std::vector<int32_t>(count, rows_per_block));
  args.sequences.start = buffers.Upload("start", std::vector<int32_t>(count, kPosition));
  args.sequences.num_drafts = buffers.Upload("drafts", std::vector<int32_t>(count, drafts));
  args.sequences.first_logit_row = buffers.Upload("first logit row", first);
  args.sequences.num_logit_rows =
      buffers.Upload("logit rows", std::vector<int32_t>(count, rows_per_block));
  args.sequences.next_token = buffers.Upload("next token", std::vector<int32_t>(count, -1));
  args.slots.length = buffers.Zeros<int32_t>("length", sequences);
  args.slots.last_token = buffers.Zeros<int32_t>("last token", sequences);
  args.slots.draft_tokens = buffers.Upload("draft tokens", tokens);
  args.slots.sampling = buffers.Upload("sampling", std::vector<SlotSampling>(count, sampling));
  args.slots.num_slots = sequences;
  args.slots.draft_length = drafts;
  args.slots.vocab = vocab;
  args.results = buffers.Zeros<SequenceResult>("results", sequences);
  args.live_sequences = buffers.Upload("live", std::vector<int32_t>{sequences});
  args.padded_sequences = sequences;
  args.scratch = buffers.Zeros<float>("scratch", int64_t{sequences} * vocab);
  return args;
}

Status BenchCase(CaseRunner& runner, const char* name, int32_t sequences,
                 const SlotSampling& sampling) {
  const KernelBenchShapes& s = runner.shapes();
  const int32_t rows = sequences * s.verify_rows;
  const bool sampled = sampling.temperature != 0.0F;
  const double row_bytes = 4.0 * s.vocab;
  KernelBenchRow row = runner.NewRow(KernelFamily::kSampling, name);
  row.cache_dtype.clear();
  row.activations = "fp32";  // logits are, in every run
  row.parameters = {
      {"sequences", sequences}, {"rows_per_sequence", s.verify_rows}, {"vocab", s.vocab}};
  // The logits of every row, its draft and, where it was drawn, the draft's probability; metadata and results of a sequence.
  row.bytes = rows * row_bytes + sequences * ((s.verify_rows - 1) * (sampled ? 8.0 : 4.0) +
                                              sizeof(SlotSampling) + sizeof(SequenceResult) + 40.0);
  // A comparison for every logit; where it is sampled, its exponential, two products and a sum too.
  row.flop = rows * static_cast<double>(s.vocab) * (sampled ? 5.0 : 1.0);
  const double set_bytes = rows * row_bytes;
  const double shared_bytes =
      sequences * row_bytes + (sampled ? sequences * (s.verify_rows - 1) * row_bytes : 0.0);
  row.sets = runner.SetsFor(row.bytes, set_bytes, shared_bytes);
  if (row.sets == 0) {
    runner.Skip(std::move(row), set_bytes, shared_bytes);
    return Status::Ok();
  }
  CaseBuffers buffers(runner.device());
  VerifyArgs args = BuildArgs(buffers, sequences, s.verify_rows, s.vocab, sampling);
  if (sampled) {
    args.slots.draft_probs = buffers.Zeros<float>(
        "draft probabilities", int64_t{sequences} * (s.verify_rows - 1) * s.vocab);
  }
  std::vector<VerifyArgs> sets(static_cast<size_t>(row.sets), args);
  for (VerifyArgs& set : sets) {
    auto* logits =
        static_cast<float*>(buffers.RandomRows("logits", rows, s.vocab, DType::kF32).data);
    for (int64_t r = 0; r < rows; ++r) {
      runner.device().stream().CopyToDevice(logits + r * s.vocab + (7 * r + 1) % s.vocab, &kSure,
                                            sizeof(kSure));
    }
    set.logits = logits;
  }
  const KernelTable& ops = runner.device().kernels();
  return runner.Run(std::move(row), [&](Stream& stream, int32_t set) {
    Launch(stream, ops.verify, sets[static_cast<size_t>(set)]);
  });
}

}  // namespace

Status BenchSampling(CaseRunner& runner) {
  SlotSampling nucleus;
  nucleus.temperature = 1.0F;
  nucleus.top_p = 0.95F;
  for (const int32_t sequences : runner.RowsOr(runner.shapes().sampling_sequences)) {
    FIRESTEEL_RETURN_IF_ERROR(BenchCase(runner, "verify_greedy", sequences, SlotSampling{}));
    FIRESTEEL_RETURN_IF_ERROR(BenchCase(runner, "verify_nucleus", sequences, nucleus));
  }
  return Status::Ok();
}

}  // namespace firesteel
