// Captured decode steps by shape. Shapes are captured the first time the start-up list names them; a step whose shape was
// captured is replayed, any other runs eagerly.
#pragma once

#include <map>
#include <memory>

#include "engine/exec/step_program.h"

namespace firesteel {

class GraphRunner {
 public:
  explicit GraphRunner(StepProgram& program) : program_(program) {}

  // REQUIRES: shape.captured.
  Status Capture(const StepShape& shape);

  void Run(const StepShape& shape);

  bool Has(const StepShape& shape) const { return graphs_.count(shape) != 0; }
  size_t num_graphs() const { return graphs_.size(); }

 private:
  StepProgram& program_;
  std::map<StepShape, std::unique_ptr<Graph>> graphs_;
};

}  // namespace firesteel
