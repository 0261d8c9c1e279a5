#include "engine/exec/graph_runner.h"

#include <utility>

namespace firesteel {

Status GraphRunner::Capture(const StepShape& shape) {
  FIRESTEEL_CHECK(shape.captured, "an eager shape has no graph");
  Stream& stream = program_.device.stream();
  stream.BeginCapture();
  EnqueueStep(shape, program_);
  FIRESTEEL_ASSIGN_OR_RETURN(std::unique_ptr<Graph> graph, stream.EndCapture());
  graphs_[shape] = std::move(graph);
  return Status::Ok();
}

void GraphRunner::Run(const StepShape& shape) {
  if (!shape.captured) return EnqueueStep(shape, program_);
  const auto found = graphs_.find(shape);
  FIRESTEEL_CHECK(found != graphs_.end(), "a decode shape is missing from the capture list");
  found->second->Replay(program_.device.stream());
}

}  // namespace firesteel
