// Target rows attend to their window and to entries that the indexer chose. Verify rows of a request see windows that slide
// by one position over the same cache rows; the chosen entries of different rows are different, as in public measurements.
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

// Entries that a row chooses among, for each chosen one: the gather is scattered, but not one entry a page.
constexpr int32_t kEntriesPerChosen = 2;

struct DecodeShape {
  int32_t heads;
  int32_t rows;
  int32_t rows_per_request;
  int32_t requests;
  int32_t window_keys;  // different ones of a request
  int64_t window_pages_per_request;
  int64_t extra_pages_per_row;
};

DecodeShape ShapeOf(const CaseRunner& runner, const KernelBenchShapes& s, int32_t heads,
                    int32_t rows) {
  DecodeShape d{};
  d.heads = heads;
  d.rows = rows;
  d.rows_per_request = runner.RowsPerRequest(rows);
  d.requests = rows / d.rows_per_request;
  d.window_keys = s.window + d.rows_per_request - 1;
  d.window_pages_per_request = CeilDiv(d.window_keys, CaseBuffers::kWindowPageEntries);
  d.extra_pages_per_row =
      CeilDiv(s.extra_keys * kEntriesPerChosen, CaseBuffers::kContextPageEntries);
  return d;
}

std::vector<int32_t> WindowIndex(CaseBuffers& buffers, const KernelBenchShapes& s,
                                 const DecodeShape& d) {
  constexpr int32_t kEntries = CaseBuffers::kWindowPageEntries;
  const std::vector<int32_t> page = buffers.Shuffled(d.requests * d.window_pages_per_request);
  std::vector<int32_t> index;
  for (int32_t row = 0; row < d.rows; ++row) {
    const int64_t first_page = row / d.rows_per_request * d.window_pages_per_request;
    for (int32_t t = 0; t < s.window; ++t) {
      const int32_t position = row % d.rows_per_request + t;
      index.push_back(page[static_cast<size_t>(first_page + position / kEntries)] * kEntries +
                      position % kEntries);
    }
  }
  return index;
}

std::vector<int32_t> ExtraIndex(CaseBuffers& buffers, const KernelBenchShapes& s,
                                const DecodeShape& d) {
  constexpr int32_t kEntries = CaseBuffers::kContextPageEntries;
  const std::vector<int32_t> page = buffers.Shuffled(d.rows * d.extra_pages_per_row);
  std::vector<int32_t> index;
  for (int32_t row = 0; row < d.rows; ++row) {
    for (const int32_t entry : buffers.Choose(s.extra_keys * kEntriesPerChosen, s.extra_keys)) {
      const int64_t of_row = row * d.extra_pages_per_row + entry / kEntries;
      index.push_back(page[static_cast<size_t>(of_row)] * kEntries + entry % kEntries);
    }
  }
  return index;
}

Status BenchCase(CaseRunner& runner, int32_t heads, int32_t rows) {
  const KernelBenchShapes& s = runner.shapes();
  const KvFormat format = runner.AttentionFormat();
  const DecodeShape d = ShapeOf(runner, s, heads, rows);
  const int64_t window_pages = d.requests * d.window_pages_per_request;
  const int64_t extra_pages = d.rows * d.extra_pages_per_row;
  const double query_bytes =
      static_cast<double>(rows) * heads * s.head_dim * runner.ActivationBytes();
  const double keys_per_row = s.window + s.extra_keys;

  KernelBenchRow row = runner.NewRow(KernelFamily::kSparseDecode, "sparse_attention");
  row.parameters = {{"rows", rows},
                    {"requests", d.requests},
                    {"rows_per_request", d.rows_per_request},
                    {"heads", heads},
                    {"head_dim", s.head_dim},
                    {"rope_dim", s.rope_dim},
                    {"window_keys", s.window},
                    {"extra_keys", s.extra_keys}};
  const double records =
      static_cast<double>(d.requests) * d.window_keys + static_cast<double>(rows) * s.extra_keys;
  // A row has two lists: their indices and two counts.
  row.bytes = records * static_cast<double>(KvRecordBytes(format, s.head_dim, s.rope_dim)) +
              rows * (4.0 * keys_per_row + 8.0) + 2.0 * query_bytes + 4.0 * heads;
  row.flop = 4.0 * rows * heads * keys_per_row * s.head_dim;
  const auto pool_bytes = [&](int32_t entries, int64_t pages) {
    return static_cast<double>(pages * KvPageBytes(format, s.head_dim, s.rope_dim, entries));
  };
  const double set_bytes = 2.0 * query_bytes +
                           pool_bytes(CaseBuffers::kWindowPageEntries, window_pages) +
                           pool_bytes(CaseBuffers::kContextPageEntries, extra_pages);
  row.sets = runner.SetsFor(row.bytes, set_bytes, 0.0);
  if (row.sets == 0) {
    runner.Skip(std::move(row), set_bytes, 0.0);
    return Status::Ok();
  }

  CaseBuffers buffers(runner.device());
  const auto valid = [&](const char* name, int32_t count) {
    return buffers.Upload(name, std::vector<int32_t>(static_cast<size_t>(rows), count));
  };
  SparseAttentionArgs args{};
  args.window_rows = {buffers.Upload("window index", WindowIndex(buffers, s, d)),
                      valid("window valid", s.window), s.window};
  args.extra_rows = {buffers.Upload("extra index", ExtraIndex(buffers, s, d)),
                     valid("extra valid", s.extra_keys), s.extra_keys};
  args.sink = static_cast<const float*>(buffers.RandomRows("sink", 1, heads, DType::kF32).data);
  args.live = buffers.Upload("live", std::vector<int32_t>{rows});
  args.rows = rows;
  args.rows_per_list = 1;
  args.heads = heads;
  args.head_dim = s.head_dim;
  args.scale = 1.0F / std::sqrt(static_cast<float>(s.head_dim));
  std::vector<SparseAttentionArgs> sets(static_cast<size_t>(row.sets), args);
  for (SparseAttentionArgs& set : sets) {
    const int64_t columns = int64_t{heads} * s.head_dim;
    set.q = buffers.RandomRows("q", rows, columns, runner.options().activations);
    set.out = buffers.RandomRows("out", rows, columns, runner.options().activations);
    set.window = buffers.RandomPages("window", format, s.head_dim, s.rope_dim,
                                     CaseBuffers::kWindowPageEntries, window_pages);
    set.extra = buffers.RandomPages("extra", format, s.head_dim, s.rope_dim,
                                    CaseBuffers::kContextPageEntries, extra_pages);
  }
  const KernelTable& ops = runner.device().kernels();
  return runner.Run(std::move(row), [&](Stream& stream, int32_t set) {
    Launch(stream, ops.sparse_attention, sets[static_cast<size_t>(set)]);
  });
}

}  // namespace

Status BenchSparseDecode(CaseRunner& runner) {
  for (const int32_t heads : runner.shapes().attention_heads) {
    for (const int32_t rows : runner.RowsOr(runner.shapes().decode_rows)) {
      FIRESTEEL_RETURN_IF_ERROR(BenchCase(runner, heads, rows));
    }
  }
  return Status::Ok();
}

}  // namespace firesteel
