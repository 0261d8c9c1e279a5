// Runs the cases of a kernel benchmark one after another and reports each as soon as it is measured.
//
// Used by the caller of RunKernelBench alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/api/kernel_bench.h"
#include "kernels/core/device.h"
#include "kernels/ops/kv_record.h"

namespace firesteel {

class CaseRunner {
 public:
  // Enqueues one launch of the case on input set `set`.
  using Enqueue = std::function<void(Stream& stream, int32_t set)>;

  // All four outlive the runner.
  CaseRunner(Device& device, const KernelBenchOptions& options, const KernelBenchMachine& machine,
             const KernelBenchSink& sink)
      : device_(device), options_(options), machine_(machine), sink_(sink) {}

  Device& device() { return device_; }
  const KernelBenchOptions& options() const { return options_; }
  const KernelBenchShapes& shapes() const { return options_.shapes; }
  // The sizes that were asked for, else the family's own.
  const std::vector<int32_t>& RowsOr(const std::vector<int32_t>& own) const {
    return options_.rows.empty() ? own : options_.rows;
  }
  // Rows of one request in a batch of `rows`: a verify block where the batch is made of whole ones, else 1.
  int32_t RowsPerRequest(int32_t rows) const {
    return rows % options_.shapes.verify_rows == 0 ? options_.shapes.verify_rows : 1;
  }

  KvFormat AttentionFormat() const;
  KvFormat IndexFormat() const;
  int32_t ActivationBytes() const { return DTypeBytes(options_.activations); }

  // Input sets that make a case rotate through more memory than a cache holds, when a launch touches `touched` bytes; fewer
  // where `allocated` bytes a set beside `shared` bytes meet the memory limit. 0: not one set fits.
  int32_t SetsFor(double touched, double allocated, double shared) const;

  // Fills in the options' storage types; a family clears those that it has no use for.
  KernelBenchRow NewRow(KernelFamily family, std::string name) const;

  // Times the case and reports it. `row` has everything but the figures.
  Status Run(KernelBenchRow row, const Enqueue& enqueue);
  // Reports a case whose sets, each of `allocated` bytes, do not fit beside `shared` bytes.
  void Skip(KernelBenchRow row, double allocated, double shared);

 private:
  Device& device_;
  const KernelBenchOptions& options_;
  const KernelBenchMachine& machine_;
  const KernelBenchSink& sink_;
};

}  // namespace firesteel
