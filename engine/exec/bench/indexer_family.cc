// Scoring of every visible entry and the exact choice of the best. Verify rows of a request see the same entries.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/exec/bench/case_buffers.h"
#include "engine/exec/bench/kernel_families.h"
#include "kernels/core/launch.h"
#include "kernels/ops/indexer/indexer.h"

namespace firesteel {
namespace {

constexpr int32_t kScoreRows = 64;  // as many as the engine scores at a time

Status BenchCase(CaseRunner& runner, int32_t visible, int32_t rows) {
  const KernelBenchShapes& s = runner.shapes();
  constexpr int32_t kEntries = CaseBuffers::kContextPageEntries;
  const KvFormat format = runner.IndexFormat();
  const int32_t rows_per_request = runner.RowsPerRequest(rows);
  const int32_t requests = rows / rows_per_request;
  const int32_t pages_per_request = CeilDiv(visible, kEntries);
  const int64_t pages = int64_t{requests} * pages_per_request;
  const int32_t kept = std::min(visible, s.index_top_k);
  const int64_t columns = int64_t{s.index_heads} * s.index_dim;

  KernelBenchRow row = runner.NewRow(KernelFamily::kIndexer, "indexer");
  row.parameters = {
      {"rows", rows},           {"requests", requests},    {"rows_per_request", rows_per_request},
      {"heads", s.index_heads}, {"head_dim", s.index_dim}, {"visible", visible},
      {"top_k", s.index_top_k}};
  // Keys and block ids of a request; q, head weights, row data (visible, slot) and the kept entries with their count of a
  // row. Scores are the operation's own.
  row.bytes = static_cast<double>(requests) *
                  (static_cast<double>(visible) *
                       static_cast<double>(KvRecordBytes(format, s.index_dim, 0)) +
                   4.0 * pages_per_request) +
              static_cast<double>(rows) * (static_cast<double>(columns) * runner.ActivationBytes() +
                                           4.0 * s.index_heads + 8.0 + 4.0 * kept + 4.0);
  // A dot product, its weight and its sum for every head.
  row.flop = static_cast<double>(rows) * visible * s.index_heads * (2.0 * s.index_dim + 2.0);
  const double set_bytes =
      static_cast<double>(pages * KvPageBytes(format, s.index_dim, 0, kEntries));
  const double shared_bytes = 4.0 * std::min(rows, kScoreRows) * visible +
                              static_cast<double>(rows) * static_cast<double>(columns) * 4.0;
  row.sets = runner.SetsFor(row.bytes, set_bytes, shared_bytes);
  if (row.sets == 0) {
    runner.Skip(std::move(row), set_bytes, shared_bytes);
    return Status::Ok();
  }

  CaseBuffers buffers(runner.device());
  std::vector<int32_t> slot(static_cast<size_t>(rows));
  for (int32_t r = 0; r < rows; ++r) slot[static_cast<size_t>(r)] = r / rows_per_request;
  IndexerArgs args{};
  args.q = buffers.RandomRows("q", rows, columns, runner.options().activations);
  args.weight = static_cast<const float*>(
      buffers.RandomRows("head weight", rows, s.index_heads, DType::kF32).data);
  args.visible =
      buffers.Upload("visible", std::vector<int32_t>(static_cast<size_t>(rows), visible));
  args.meta.slot = buffers.Upload("slot", slot);
  args.slots.block_table[0] = buffers.Upload("block table", buffers.Shuffled(pages));
  args.slots.max_blocks[0] = pages_per_request;
  args.slots.block_tokens[0] = kEntries;
  args.slots.num_groups = 1;
  args.slots.num_slots = requests;
  args.out = {buffers.Zeros<int32_t>("out", int64_t{rows} * s.index_top_k),
              buffers.Zeros<int32_t>("out valid", rows), s.index_top_k};
  args.score_rows = std::min(rows, kScoreRows);
  args.scores = buffers.Zeros<float>("scores", int64_t{args.score_rows} * visible);
  args.live = buffers.Upload("live", std::vector<int32_t>{rows});
  args.rows = rows;
  args.max_entries = visible;
  args.heads = s.index_heads;
  args.top_k = s.index_top_k;
  args.context_group = 0;
  args.entries_per_block = kEntries;
  std::vector<IndexerArgs> sets(static_cast<size_t>(row.sets), args);
  for (IndexerArgs& set : sets) {
    set.keys = buffers.RandomPages("keys", format, s.index_dim, 0, kEntries, pages);
  }
  const KernelTable& ops = runner.device().kernels();
  return runner.Run(std::move(row), [&](Stream& stream, int32_t set) {
    Launch(stream, ops.indexer, sets[static_cast<size_t>(set)]);
  });
}

}  // namespace

Status BenchIndexer(CaseRunner& runner) {
  for (const int32_t visible : runner.shapes().index_visible) {
    for (const int32_t rows : runner.RowsOr(runner.shapes().indexer_rows)) {
      FIRESTEEL_RETURN_IF_ERROR(BenchCase(runner, visible, rows));
    }
  }
  return Status::Ok();
}

}  // namespace firesteel
