// Engine::Create has a file of its own so that a program which brings its own rank need not link
// the real one.
#include <utility>

#include "engine/api/engine.h"
#include "engine/exec/rank.h"
#include "engine/runtime/engine_factory.h"

namespace firesteel {

Result<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  FIRESTEEL_RETURN_IF_ERROR(options.Validate());
  return CreateEngineOn([options] { return CreateRank(options); }, options);
}

}  // namespace firesteel
