#include "kernels/core/status.h"

#include <memory>
#include <string>

#include "tests/support/catch.h"

namespace firesteel {
namespace {

Status FailWhen(bool fail) { return fail ? NotFound("file 'a' is missing") : Status::Ok(); }

Result<int> ParseDigit(char c) {
  if (c < '0' || c > '9') return InvalidArgument("not a digit");
  return c - '0';
}

Result<int> SumDigits(char a, char b) {
  FIRESTEEL_ASSIGN_OR_RETURN(const int x, ParseDigit(a));
  FIRESTEEL_ASSIGN_OR_RETURN(const int y, ParseDigit(b));
  return x + y;
}

Status Twice(bool fail, int* reached) {
  FIRESTEEL_RETURN_IF_ERROR(FailWhen(fail));
  ++*reached;
  return Status::Ok();
}

TEST_CASE("a default status is ok and has no message", "[core][status]") {
  const Status status;
  CHECK(status.ok());
  CHECK(status.code() == StatusCode::kOk);
  CHECK(status.message().empty());
  CHECK(status.ToString() == "ok");
}

TEST_CASE("every maker sets its own code and keeps the message", "[core][status]") {
  CHECK(InvalidArgument("m").code() == StatusCode::kInvalidArgument);
  CHECK(NotFound("m").code() == StatusCode::kNotFound);
  CHECK(ResourceExhausted("m").code() == StatusCode::kResourceExhausted);
  CHECK(Unavailable("m").code() == StatusCode::kUnavailable);
  CHECK(Unsupported("m").code() == StatusCode::kUnsupported);
  CHECK(DataLoss("m").code() == StatusCode::kDataLoss);
  CHECK(Internal("m").code() == StatusCode::kInternal);
  CHECK(DataLoss("tensor 'x' has 3 bytes").ToString() == "data loss: tensor 'x' has 3 bytes");
}

TEST_CASE("a copied status owns its own message", "[core][status]") {
  Status copy;
  {
    const Status original = Internal("gone soon");
    copy = original;
  }
  CHECK(copy.message() == "gone soon");
  const Status second(copy);
  copy = Status::Ok();
  CHECK(second.message() == "gone soon");
  CHECK(copy.ok());
}

TEST_CASE("assigning a status to itself keeps it", "[core][status]") {
  Status status = NotFound("kept");
  const Status& alias = status;
  status = alias;
  CHECK(status.message() == "kept");
}

TEST_CASE("return-if-error leaves the function only on an error", "[core][status]") {
  int reached = 0;
  CHECK(Twice(false, &reached).ok());
  CHECK(reached == 1);
  CHECK(Twice(true, &reached).code() == StatusCode::kNotFound);
  CHECK(reached == 1);
}

TEST_CASE("assign-or-return passes values on and stops at the first error", "[core][status]") {
  const Result<int> sum = SumDigits('3', '4');
  REQUIRE(sum.ok());
  CHECK(sum.value() == 7);
  const Result<int> bad = SumDigits('3', 'x');
  REQUIRE(!bad.ok());
  CHECK(bad.status().message() == "not a digit");
}

TEST_CASE("a result hands out a value that cannot be copied", "[core][status]") {
  Result<std::unique_ptr<std::string>> result(std::make_unique<std::string>("owned"));
  REQUIRE(result.ok());
  CHECK((*result)->size() == 5);
  const std::unique_ptr<std::string> taken = std::move(result).value();
  CHECK(*taken == "owned");
}

}  // namespace
}  // namespace firesteel
