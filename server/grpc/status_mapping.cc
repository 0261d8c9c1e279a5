#include "server/grpc/status_mapping.h"

namespace firesteel {

grpc::Status ToGrpcStatus(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk: return grpc::Status::OK;
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported: return {grpc::StatusCode::INVALID_ARGUMENT, status.message()};
    case StatusCode::kNotFound: return {grpc::StatusCode::NOT_FOUND, status.message()};
    case StatusCode::kResourceExhausted:
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, status.message()};
    case StatusCode::kUnavailable: return {grpc::StatusCode::UNAVAILABLE, status.message()};
    default: return {grpc::StatusCode::INTERNAL, status.message()};
  }
}

}  // namespace firesteel
