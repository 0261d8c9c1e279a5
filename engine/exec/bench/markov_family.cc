// One greedy step of the drafter's sequential head: the whole vocabulary is biased by the token before and the best is taken.
#include <string>
#include <utility>
#include <vector>

#include "engine/exec/bench/case_buffers.h"
#include "engine/exec/bench/kernel_families.h"
#include "kernels/core/launch.h"
#include "kernels/ops/markov/markov.h"

namespace firesteel {
namespace {

Status BenchCase(CaseRunner& runner, int32_t sequences) {
  const KernelBenchShapes& s = runner.shapes();
  const double table_bytes = 2.0 * s.vocab * static_cast<double>(s.markov_rank);
  const double logit_bytes = 4.0 * sequences * static_cast<double>(s.vocab);

  KernelBenchRow row = runner.NewRow(KernelFamily::kMarkov, "markov_step");
  row.cache_dtype.clear();
  row.weight_dtype = "bf16";
  row.activations = "fp32";  // logits are, in every run
  row.parameters = {{"sequences", sequences}, {"vocab", s.vocab}, {"rank", s.markov_rank}};
  // W2, the base logits, one row of W1 a sequence; its slot, temperature and predecessor in, the token out twice. The biased
  // logits are the operation's own.
  row.bytes = table_bytes + logit_bytes +
              static_cast<double>(sequences) * (2.0 * s.markov_rank + 12.0 + 8.0);
  row.flop = 2.0 * sequences * static_cast<double>(s.vocab) * s.markov_rank;
  const double set_bytes = table_bytes + logit_bytes;
  const double shared_bytes = table_bytes + logit_bytes;
  row.sets = runner.SetsFor(row.bytes, set_bytes, shared_bytes);
  if (row.sets == 0) {
    runner.Skip(std::move(row), set_bytes, shared_bytes);
    return Status::Ok();
  }

  CaseBuffers buffers(runner.device());
  std::vector<int32_t> chain;  // of each sequence: the anchor, and where the step writes
  for (const int32_t anchor : buffers.Choose(s.vocab, sequences)) {
    chain.push_back(anchor);
    chain.push_back(0);
  }
  MarkovStepArgs args{};
  args.w1 = static_cast<const uint16_t*>(
      buffers.RandomRows("w1", s.vocab, s.markov_rank, DType::kBf16).data);
  args.logits = buffers.Zeros<float>("logits", int64_t{sequences} * s.vocab);
  args.slots.draft_tokens = buffers.Zeros<int32_t>("draft tokens", sequences);
  args.slots.sampling = buffers.Upload(
      "sampling", std::vector<SlotSampling>(static_cast<size_t>(sequences), SlotSampling{}));
  args.slots.num_slots = sequences;
  args.slots.draft_length = 1;
  args.slots.vocab = s.vocab;
  args.draft.slot = buffers.Upload("slot", buffers.Shuffled(sequences));
  args.draft.chain = buffers.Upload("chain", chain);
  args.live_sequences = buffers.Upload("live", std::vector<int32_t>{sequences});
  args.padded_sequences = sequences;
  args.block = 1;
  args.step = 0;
  std::vector<MarkovStepArgs> sets(static_cast<size_t>(row.sets), args);
  for (MarkovStepArgs& set : sets) {
    set.base =
        static_cast<const float*>(buffers.RandomRows("base", sequences, s.vocab, DType::kF32).data);
    set.w2 = buffers.RandomWeight("w2", DType::kBf16, s.vocab, s.markov_rank);
  }
  const KernelTable& ops = runner.device().kernels();
  return runner.Run(std::move(row), [&](Stream& stream, int32_t set) {
    Launch(stream, ops.markov_step, sets[static_cast<size_t>(set)]);
  });
}

}  // namespace

Status BenchMarkov(CaseRunner& runner) {
  for (const int32_t sequences : runner.RowsOr(runner.shapes().markov_sequences)) {
    FIRESTEEL_RETURN_IF_ERROR(BenchCase(runner, sequences));
  }
  return Status::Ok();
}

}  // namespace firesteel
