#include "engine/exec/graph_runner.h"

#include <utility>

#include "engine/exec/step_digest.h"

namespace firesteel {

Status GraphRunner::Capture(const StepShape& shape) {
  FIRESTEEL_CHECK(shape.captured, "an eager shape has no graph");
  Stream& stream = program_.device.stream();
  stream.BeginCapture();
  EnqueueStep(shape, program_, stream);
  FIRESTEEL_ASSIGN_OR_RETURN(std::unique_ptr<Graph> graph, stream.EndCapture());
  graphs_[shape] = Captured{std::move(graph), StepDigest(shape, program_)};
  return Status::Ok();
}

void GraphRunner::Run(const StepShape& shape) {
  Stream& stream = program_.device.stream();
  if (!shape.captured) return EnqueueStep(shape, program_, stream);
  const auto found = graphs_.find(shape);
  FIRESTEEL_CHECK(found != graphs_.end(), "a decode shape is missing from the capture list");
  FIRESTEEL_DCHECK(StepDigest(shape, program_) == found->second.digest,
                   "a buffer of a captured step has moved since its capture");
  found->second.graph->Replay(stream);
}

}  // namespace firesteel
