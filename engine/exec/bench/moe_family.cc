// The routed experts of a layer. Input sets share the weights and differ in which experts the rows chose: at few rows a launch
// touches a small part of them, and the next one another part.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "engine/exec/bench/case_buffers.h"
#include "engine/exec/bench/kernel_families.h"
#include "kernels/core/launch.h"
#include "kernels/ops/moe/moe.h"

namespace firesteel {
namespace {

constexpr DType kExpertDtype = DType::kF4E2M1x2;
constexpr float kSwigluLimit = 10.0F;

ExpertWeights RandomExperts(CaseBuffers& buffers, const std::string& name, int32_t experts,
                            int32_t out, int32_t in) {
  std::vector<Weight> table;
  table.reserve(static_cast<size_t>(experts));
  for (int32_t e = 0; e < experts; ++e) {
    table.push_back(buffers.RandomWeight(name, kExpertDtype, out, in));
  }
  return {buffers.Upload(name + " table", table), table.front()};
}

// The weights of a layer; they serve every row count.
struct Layer {
  ExpertWeights gate;
  ExpertWeights up;
  ExpertWeights down;
};

struct Routing {
  const int32_t* expert;  // [rows, top_k]
  MoeGroups groups;
  int32_t distinct;  // experts that some row chose
};

Routing RandomRouting(CaseBuffers& buffers, const KernelBenchShapes& s, int32_t rows) {
  std::vector<int32_t> expert;
  std::vector<bool> chosen(static_cast<size_t>(s.experts), false);
  for (int32_t row = 0; row < rows; ++row) {
    for (const int32_t e : buffers.Choose(s.experts, s.experts_per_row)) {
      expert.push_back(e);
      chosen[static_cast<size_t>(e)] = true;
    }
  }
  Routing routing{};
  routing.expert = buffers.Upload("expert", expert);
  const int64_t pairs = int64_t{rows} * s.experts_per_row;
  routing.groups = {
      buffers.Zeros<int32_t>("offset", s.experts + 1), buffers.Zeros<int32_t>("pair row", pairs),
      buffers.Zeros<int32_t>("pair choice", pairs), buffers.Zeros<int32_t>("pair of", pairs)};
  routing.distinct = static_cast<int32_t>(std::count(chosen.begin(), chosen.end(), true));
  return routing;
}

// What a row count is measured with; the activations are the same in every set, as the previous operation has just written
// them in a server.
class RowCase {
 public:
  RowCase(CaseRunner& runner, const Layer& layer, int32_t rows)
      : runner_(runner),
        s_(runner.shapes()),
        layer_(layer),
        rows_(rows),
        buffers_(runner.device()) {
    const DType dtype = runner.options().activations;
    const int64_t pairs = int64_t{rows} * s_.experts_per_row;
    x_ = buffers_.RandomRows("x", rows, s_.hidden, dtype);
    gate_ = buffers_.RandomRows("gate", pairs, s_.inner, dtype);
    up_ = buffers_.RandomRows("up", pairs, s_.inner, dtype);
    y_ = buffers_.RandomRows("y", pairs, s_.hidden, dtype);
    weight_ = static_cast<const float*>(
        buffers_.RandomRows("routing weight", rows, s_.experts_per_row, DType::kF32).data);
    live_ = buffers_.Upload("live", std::vector<int32_t>{rows});
  }

  // As many input sets as one matrix alone needs.
  void MakeRoutings() {
    const double expected =
        s_.experts *
        (1.0 - std::pow(1.0 - static_cast<double>(s_.experts_per_row) / s_.experts, rows_));
    const int32_t sets = SetsOf(expected * static_cast<double>(MatrixBytes()));
    for (int32_t i = 0; i < sets; ++i) {
      routings_.push_back(RandomRouting(buffers_, s_, rows_));
      Launch(runner_.device().stream(), runner_.device().kernels().moe_group,
             Group(routings_.back()));
    }
  }

  Status RunChain() {
    KernelBenchRow row = Describe("experts", 3, s_.hidden, s_.hidden);
    // Besides the rows and the weights: the choices of the router and its weights.
    row.bytes += 8.0 * rows_ * s_.experts_per_row;
    return runner_.Run(std::move(row), [this](Stream& stream, int32_t set) {
      const KernelTable& ops = runner_.device().kernels();
      const Routing& routing = routings_[static_cast<size_t>(set)];
      Launch(stream, ops.moe_group, Group(routing));
      Launch(stream, ops.grouped_linear, Grouped(routing, x_, gate_, layer_.gate, true));
      Launch(stream, ops.grouped_linear, Grouped(routing, x_, up_, layer_.up, true));
      Launch(stream, ops.swiglu,
             SwigluArgs{gate_, up_, gate_, weight_, routing.groups.pair_choice, live_,
                        s_.experts_per_row, rows_ * s_.experts_per_row, s_.inner, kSwigluLimit});
      Launch(stream, ops.grouped_linear, Grouped(routing, gate_, y_, layer_.down, false));
    });
  }

  Status RunGate() {
    return runner_.Run(
        Describe("gate", 1, s_.hidden, s_.inner), [this](Stream& stream, int32_t set) {
          Launch(stream, runner_.device().kernels().grouped_linear,
                 Grouped(routings_[static_cast<size_t>(set)], x_, gate_, layer_.gate, true));
        });
  }

  Status RunDown() {
    return runner_.Run(
        Describe("down", 1, s_.inner, s_.hidden), [this](Stream& stream, int32_t set) {
          Launch(stream, runner_.device().kernels().grouped_linear,
                 Grouped(routings_[static_cast<size_t>(set)], up_, y_, layer_.down, false));
        });
  }

 private:
  int64_t MatrixBytes() const { return WeightBytes(kExpertDtype, s_.inner, s_.hidden); }
  int32_t SetsOf(double touched) const { return runner_.SetsFor(touched, 0.0, 0.0); }

  MoeGroupArgs Group(const Routing& routing) const {
    return {routing.expert, routing.groups, live_, rows_, s_.experts, s_.experts_per_row};
  }
  GroupedLinearArgs Grouped(const Routing& routing, const Rows& x, const Rows& y,
                            const ExpertWeights& weights, bool from_rows) const {
    return {x,
            y,
            weights,
            routing.groups.offset,
            from_rows ? routing.groups.pair_row : nullptr,
            s_.experts,
            rows_ * s_.experts_per_row};
  }

  // A case over `matrices` of each expert, from `in` columns a row (or pair, where that is what comes in) to `out` a pair.
  KernelBenchRow Describe(const char* name, int32_t matrices, int32_t in, int32_t out) const {
    const double pairs = static_cast<double>(rows_) * s_.experts_per_row;
    double distinct = 0.0;
    for (const Routing& routing : routings_) distinct += routing.distinct;
    distinct /= static_cast<double>(routings_.size());
    KernelBenchRow row = runner_.NewRow(KernelFamily::kMoe, name);
    row.cache_dtype.clear();
    row.weight_dtype = "fp4";
    row.parameters = {{"rows", rows_},
                      {"experts", s_.experts},
                      {"experts_per_row", s_.experts_per_row},
                      {"distinct_experts", std::llround(distinct)},
                      {"hidden", s_.hidden},
                      {"inner", s_.inner}};
    const double weight_bytes = distinct * matrices * static_cast<double>(MatrixBytes());
    const double inputs = in == s_.hidden ? rows_ : pairs;
    row.bytes = weight_bytes + (inputs * in + pairs * out) * runner_.ActivationBytes();
    row.flop = 2.0 * pairs * matrices * s_.hidden * static_cast<double>(s_.inner);
    row.sets = std::min(static_cast<int32_t>(routings_.size()), SetsOf(weight_bytes));
    return row;
  }

  CaseRunner& runner_;
  const KernelBenchShapes& s_;
  const Layer& layer_;
  const int32_t rows_;
  CaseBuffers buffers_;
  Rows x_;     // [rows, hidden]
  Rows gate_;  // [pairs, inner]
  Rows up_;    // [pairs, inner]
  Rows y_;     // [pairs, hidden]
  const float* weight_;
  const int32_t* live_;
  std::vector<Routing> routings_;
};

}  // namespace

Status BenchMoe(CaseRunner& runner) {
  const KernelBenchShapes& s = runner.shapes();
  const double layer_bytes =
      3.0 * s.experts * static_cast<double>(WeightBytes(kExpertDtype, s.inner, s.hidden));
  if (runner.SetsFor(layer_bytes, 0.0, layer_bytes) == 0) {
    KernelBenchRow row = runner.NewRow(KernelFamily::kMoe, "experts");
    row.cache_dtype.clear();
    row.weight_dtype = "fp4";
    row.parameters = {{"experts", s.experts}, {"hidden", s.hidden}, {"inner", s.inner}};
    runner.Skip(std::move(row), 0.0, layer_bytes);
    return Status::Ok();
  }
  CaseBuffers buffers(runner.device());
  const Layer layer{RandomExperts(buffers, "gate", s.experts, s.inner, s.hidden),
                    RandomExperts(buffers, "up", s.experts, s.inner, s.hidden),
                    RandomExperts(buffers, "down", s.experts, s.hidden, s.inner)};
  for (const int32_t rows : runner.RowsOr(s.moe_rows)) {
    RowCase row_case(runner, layer, rows);
    row_case.MakeRoutings();
    FIRESTEEL_RETURN_IF_ERROR(row_case.RunChain());
    FIRESTEEL_RETURN_IF_ERROR(row_case.RunGate());
    FIRESTEEL_RETURN_IF_ERROR(row_case.RunDown());
  }
  return Status::Ok();
}

}  // namespace firesteel
