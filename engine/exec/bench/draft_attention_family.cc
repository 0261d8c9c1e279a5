// Every row of a draft block attends to the same keys: the window before the block, and the whole block.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "engine/exec/bench/case_buffers.h"
#include "engine/exec/bench/kernel_families.h"
#include "kernels/core/launch.h"
#include "kernels/ops/sparse_attention/sparse_attention.h"

namespace firesteel {
namespace {

Status BenchCase(CaseRunner& runner, int32_t heads, int32_t requests) {
  const KernelBenchShapes& s = runner.shapes();
  const KvFormat format = runner.AttentionFormat();
  const int32_t keys = s.window + s.block_rows;
  const int32_t rows = requests * s.block_rows;
  const int32_t pages_per_request = CeilDiv(keys, CaseBuffers::kWindowPageEntries);
  const int64_t pages = int64_t{requests} * pages_per_request;
  const double query_bytes =
      static_cast<double>(rows) * heads * s.head_dim * runner.ActivationBytes();

  KernelBenchRow row = runner.NewRow(KernelFamily::kDraftAttention, "sparse_attention");
  row.parameters = {{"rows", rows},           {"requests", requests},
                    {"heads", heads},         {"head_dim", s.head_dim},
                    {"rope_dim", s.rope_dim}, {"rows_per_list", s.block_rows},
                    {"keys_per_list", keys},  {"list_width", s.list_width}};
  // A list is `keys` indices and one count.
  row.bytes = static_cast<double>(requests) *
                  (static_cast<double>(keys) *
                       static_cast<double>(KvRecordBytes(format, s.head_dim, s.rope_dim)) +
                   4.0 * keys + 4.0) +
              2.0 * query_bytes + 4.0 * heads;
  row.flop = 4.0 * rows * heads * static_cast<double>(keys) * s.head_dim;
  const double set_bytes =
      2.0 * query_bytes + static_cast<double>(pages * KvPageBytes(format, s.head_dim, s.rope_dim,
                                                                  CaseBuffers::kWindowPageEntries));
  row.sets = runner.SetsFor(row.bytes, set_bytes, 0.0);
  if (row.sets == 0) {
    runner.Skip(std::move(row), set_bytes, 0.0);
    return Status::Ok();
  }

  CaseBuffers buffers(runner.device());
  const std::vector<int32_t> page = buffers.Shuffled(pages);
  std::vector<int32_t> index(static_cast<size_t>(requests) * static_cast<size_t>(s.list_width), -1);
  for (int32_t r = 0; r < requests; ++r) {
    for (int32_t t = 0; t < keys; ++t) {
      const auto of_request =
          static_cast<size_t>(r * pages_per_request + t / CaseBuffers::kWindowPageEntries);
      index[static_cast<size_t>(r) * static_cast<size_t>(s.list_width) + static_cast<size_t>(t)] =
          page[of_request] * CaseBuffers::kWindowPageEntries + t % CaseBuffers::kWindowPageEntries;
    }
  }
  SparseAttentionArgs args{};
  args.window_rows = {
      buffers.Upload("index", index),
      buffers.Upload("valid", std::vector<int32_t>(static_cast<size_t>(requests), keys)),
      s.list_width, keys};
  args.sink = static_cast<const float*>(buffers.RandomRows("sink", 1, heads, DType::kF32).data);
  args.live = buffers.Upload("live", std::vector<int32_t>{rows});
  args.rows = rows;
  args.rows_per_list = s.block_rows;
  args.heads = heads;
  args.head_dim = s.head_dim;
  args.scale = 1.0F / std::sqrt(static_cast<float>(s.head_dim));
  std::vector<SparseAttentionArgs> sets(static_cast<size_t>(row.sets), args);
  for (SparseAttentionArgs& set : sets) {
    const int64_t columns = int64_t{heads} * s.head_dim;
    set.q = buffers.RandomRows("q", rows, columns, runner.options().activations);
    set.out = buffers.RandomRows("out", rows, columns, runner.options().activations);
    set.window = buffers.RandomPages("window", format, s.head_dim, s.rope_dim,
                                     CaseBuffers::kWindowPageEntries, pages);
  }
  const KernelTable& ops = runner.device().kernels();
  return runner.Run(std::move(row), [&](Stream& stream, int32_t set) {
    Launch(stream, ops.sparse_attention, sets[static_cast<size_t>(set)]);
  });
}

}  // namespace

Status BenchDraftAttention(CaseRunner& runner) {
  for (const int32_t heads : runner.shapes().attention_heads) {
    for (const int32_t requests : runner.RowsOr(runner.shapes().draft_requests)) {
      FIRESTEEL_RETURN_IF_ERROR(BenchCase(runner, heads, requests));
    }
  }
  return Status::Ok();
}

}  // namespace firesteel
