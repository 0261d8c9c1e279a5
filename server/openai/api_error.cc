#include "server/openai/api_error.h"

#include <nlohmann/json.hpp>

namespace firesteel {

namespace {

// Seconds. A full queue moves with every finished request; a drain ends with a restart behind the load balancer.
constexpr char kRetryQueueFull[] = "1";
constexpr char kRetryUnavailable[] = "5";

nlohmann::json OrNull(const std::string& text) {
  return text.empty() ? nlohmann::json(nullptr) : nlohmann::json(text);
}

}  // namespace

ApiError FieldError(const std::string& param, const std::string& message) {
  ApiError error;
  error.message = message;
  error.param = param;
  return error;
}

ApiError EngineError(const Status& status) {
  ApiError error;
  error.message = status.message();
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported: break;
    case StatusCode::kResourceExhausted:
      error.status = 429;
      error.type = "rate_limit_error";
      error.code = "queue_full";
      break;
    case StatusCode::kUnavailable:
      error.status = 503;
      error.type = "service_unavailable_error";
      error.code = "unavailable";
      break;
    default:
      error.status = 500;
      error.type = "server_error";
      error.code = "engine_error";
      break;
  }
  return error;
}

ApiError TransportError(int status, const std::string& message) {
  ApiError error;
  error.status = status;
  error.message = message;
  return error;
}

std::string ErrorJson(const ApiError& error) {
  const nlohmann::json body = {{"error",
                                {{"message", error.message},
                                 {"type", error.type},
                                 {"param", OrNull(error.param)},
                                 {"code", OrNull(error.code)}}}};
  // A message may quote what the client sent; bytes that are not UTF-8 must not make the answer invalid.
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = ErrorJson(error);
  if (error.status == 429) response.headers.emplace_back("Retry-After", kRetryQueueFull);
  if (error.status == 503) response.headers.emplace_back("Retry-After", kRetryUnavailable);
  return response;
}

}  // namespace firesteel
