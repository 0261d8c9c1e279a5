// Captured decode steps by shape. The list of shapes is walked once at start-up; afterwards a captured shape is replayed
// and any other runs eagerly. Builds without NDEBUG check before each replay that no buffer of the step has moved.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "engine/exec/step_program.h"

namespace firesteel {

class GraphRunner {
 public:
  explicit GraphRunner(StepProgram& program) : program_(program) {}

  // REQUIRES: shape.captured.
  Status Capture(const StepShape& shape);

  // REQUIRES: a shape that asks for a graph was captured.
  void Run(const StepShape& shape);

  size_t num_graphs() const { return graphs_.size(); }

 private:
  struct Captured {
    std::unique_ptr<Graph> graph;
    uint64_t digest;  // StepDigest at capture
  };

  StepProgram& program_;
  std::map<StepShape, Captured> graphs_;
};

}  // namespace firesteel
