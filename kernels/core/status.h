// Status and Result<T>: how every fallible function of Firesteel reports an outside cause.
//
// A Status is cheap when OK (no allocation) and carries a code plus one sentence otherwise. The sentence names the
// thing, the value found and the value needed; there is no numeric error catalogue. Broken invariants do not travel
// as a Status: they abort through FIRESTEEL_CHECK (see check.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kernels/core/check.h"

namespace firesteel {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the caller's input is wrong; retrying the same input cannot help
  kNotFound,           // a named file, tensor or model does not exist
  kResourceExhausted,  // a queue or pool is full; retrying later can help
  kUnavailable,        // not ready, draining, or a peer is gone
  kUnsupported,        // well-formed, but this build or checkpoint cannot do it
  kDataLoss,           // a file is truncated or inconsistent
  kInternal,           // an outside component failed in a way the caller cannot repair
};

const char* StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message);

  static Status Ok() { return Status(); }

  bool ok() const { return state_ == nullptr; }
  StatusCode code() const { return ok() ? StatusCode::kOk : state_->code; }
  const std::string& message() const;
  std::string ToString() const;  // "invalid argument: ..." for logs

  Status(const Status& other);
  Status& operator=(const Status& other);
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;

 private:
  struct State {
    StatusCode code;
    std::string message;
  };
  std::unique_ptr<State> state_;
};

Status InvalidArgument(std::string message);
Status NotFound(std::string message);
Status ResourceExhausted(std::string message);
Status Unavailable(std::string message);
Status Unsupported(std::string message);
Status DataLoss(std::string message);
Status Internal(std::string message);

// A T, or the Status that says why there is none. REQUIRES: ok() before value().
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    FIRESTEEL_CHECK(!status_.ok(), "a Result built from a Status needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & {
    FIRESTEEL_CHECK(ok(), status_.message());
    return *value_;
  }
  const T& value() const& {
    FIRESTEEL_CHECK(ok(), status_.message());
    return *value_;
  }
  T&& value() && {
    FIRESTEEL_CHECK(ok(), status_.message());
    return std::move(*value_);
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace firesteel

#define FIRESTEEL_RETURN_IF_ERROR(expr)                    \
  do {                                                     \
    ::firesteel::Status firesteel_status_ = (expr);        \
    if (!firesteel_status_.ok()) return firesteel_status_; \
  } while (false)

#define FIRESTEEL_CONCAT_INNER(a, b) a##b
#define FIRESTEEL_CONCAT(a, b) FIRESTEEL_CONCAT_INNER(a, b)

// FIRESTEEL_ASSIGN_OR_RETURN(auto x, MakeX()); the error is returned as a Status.
#define FIRESTEEL_ASSIGN_OR_RETURN(lhs, expr) \
  FIRESTEEL_ASSIGN_OR_RETURN_INNER(FIRESTEEL_CONCAT(firesteel_result_, __LINE__), lhs, expr)
#define FIRESTEEL_ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                                     \
  if (!result.ok()) return result.status();                 \
  lhs = std::move(result).value()
