// What a Status of ours is in gRPC's terms. Pure functions, callable from any thread.
#pragma once

#include <grpcpp/support/status.h>

#include "kernels/core/status.h"

namespace firesteel {

// A bad request is INVALID_ARGUMENT, a full queue RESOURCE_EXHAUSTED, draining UNAVAILABLE, an unknown model
// NOT_FOUND, the rest INTERNAL.
grpc::Status ToGrpcStatus(const Status& status);

}  // namespace firesteel
