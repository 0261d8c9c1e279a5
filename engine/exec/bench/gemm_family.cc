// The dense matrices of a layer and the LM head on few rows. Only weights rotate: in a server the previous operation has just
// written the rows.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/exec/bench/case_buffers.h"
#include "engine/exec/bench/kernel_families.h"
#include "kernels/core/launch.h"
#include "kernels/ops/linear/linear.h"

namespace firesteel {
namespace {

struct DenseMatrix {
  const char* name;
  DType dtype;
  int32_t out;
  int32_t in;  // of one group
  int32_t groups;
  bool logits;  // its outputs stay in fp32, whatever the activations are
};

std::vector<DenseMatrix> MatricesOf(const KernelBenchShapes& s) {
  const int32_t q_columns = s.q_heads * s.head_dim;
  constexpr DType kFp8 = DType::kF8E4M3;
  return {{"q_a", kFp8, s.q_rank, s.hidden, 1, false},
          {"q_b", kFp8, q_columns, s.q_rank, 1, false},
          {"wkv", kFp8, s.head_dim, s.hidden, 1, false},
          {"wo_a", kFp8, s.o_groups * s.o_rank, q_columns / s.o_groups, s.o_groups, false},
          {"wo_b", kFp8, s.hidden, s.o_groups * s.o_rank, 1, false},
          {"shared_gate", kFp8, s.inner, s.hidden, 1, false},
          {"shared_down", kFp8, s.hidden, s.inner, 1, false},
          {"draft_features", kFp8, s.hidden, 3 * s.hidden, 1, false},
          {"router", DType::kBf16, s.experts, s.hidden, 1, true},
          {"lm_head", DType::kBf16, s.head_rows, s.hidden, 1, true}};
}

// The copies of the weight serve every row count: they are what takes time to make.
Status BenchMatrix(CaseRunner& runner, const DenseMatrix& m,
                   const std::vector<int32_t>& row_counts) {
  const DType activations = runner.options().activations;
  const DType out_dtype = m.logits ? DType::kF32 : activations;
  const int64_t in_columns = int64_t{m.in} * m.groups;
  const int64_t weight_bytes = WeightBytes(m.dtype, m.out, m.in);
  const int32_t most = *std::max_element(row_counts.begin(), row_counts.end());
  const auto row_bytes = [&](int32_t rows) {
    return static_cast<double>(rows) * (static_cast<double>(in_columns) * DTypeBytes(activations) +
                                        static_cast<double>(m.out) * DTypeBytes(out_dtype));
  };
  const auto describe = [&](int32_t rows) {
    KernelBenchRow row = runner.NewRow(KernelFamily::kGemm, m.name);
    row.cache_dtype.clear();
    row.weight_dtype = m.dtype == DType::kBf16 ? "bf16" : "fp8";
    row.parameters = {{"rows", rows}, {"out", m.out}, {"in", m.in}, {"groups", m.groups}};
    row.bytes = static_cast<double>(weight_bytes) + row_bytes(rows);
    row.flop = 2.0 * rows * m.out * static_cast<double>(m.in);
    return row;
  };
  const auto set_bytes = static_cast<double>(weight_bytes);
  const int32_t copies = runner.SetsFor(set_bytes, set_bytes, row_bytes(most));
  if (copies == 0) {
    for (const int32_t rows : row_counts) runner.Skip(describe(rows), set_bytes, row_bytes(most));
    return Status::Ok();
  }

  CaseBuffers buffers(runner.device());
  std::vector<Weight> weights;
  weights.reserve(static_cast<size_t>(copies));
  for (int32_t i = 0; i < copies; ++i) {
    weights.push_back(buffers.RandomWeight(m.name, m.dtype, m.out, m.in));
  }
  LinearArgs args{};
  args.x = buffers.RandomRows("x", most, in_columns, activations);
  args.y = buffers.RandomRows("y", most, m.out, out_dtype);
  args.groups = m.groups;
  const KernelTable& ops = runner.device().kernels();
  for (const int32_t rows : row_counts) {
    args.live = buffers.Upload("live", std::vector<int32_t>{rows});
    args.rows = rows;
    KernelBenchRow row = describe(rows);
    row.sets = copies;
    FIRESTEEL_RETURN_IF_ERROR(runner.Run(std::move(row), [&](Stream& stream, int32_t set) {
      LinearArgs launch = args;
      launch.weight = weights[static_cast<size_t>(set)];
      Launch(stream, ops.linear, launch);
    }));
  }
  return Status::Ok();
}

}  // namespace

Status BenchGemm(CaseRunner& runner) {
  for (const DenseMatrix& matrix : MatricesOf(runner.shapes())) {
    FIRESTEEL_RETURN_IF_ERROR(
        BenchMatrix(runner, matrix, runner.RowsOr(runner.shapes().gemm_rows)));
  }
  return Status::Ok();
}

}  // namespace firesteel
