// Errors in the one envelope every route uses: {"error":{"message","type","param","code"}}.
#pragma once

#include <string>

#include "kernels/core/status.h"
#include "server/http/message.h"

namespace firesteel {

struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // the field at fault; empty becomes null
  std::string code;   // empty becomes null
};

// A 400 about one field.
ApiError FieldError(const std::string& param, const std::string& message);

// What a refusal or failure of the engine means to a client: a bad request 400, a full queue 429, draining 503, else 500.
ApiError EngineError(const Status& status);

// The status code of something the HTTP layer itself refuses.
ApiError TransportError(int status, const std::string& message);

std::string ErrorJson(const ApiError& error);
HttpResponse ErrorResponse(const ApiError& error);  // with Retry-After where a retry can help

}  // namespace firesteel
