#include "engine/weights/weight_set.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/weights/temp_checkpoint.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

Checkpoint OpenPair() {
  const TempDirectory directory;  // a mapping outlives the name of its file
  const std::string header = R"({"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                             R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]}})";
  auto checkpoint = Checkpoint::OpenFile(
      directory.Write("x.safetensors", SafetensorsImage(header, "abcdefghijkl")));
  REQUIRE(checkpoint.ok());
  return std::move(checkpoint).value();
}

const ExpectedTensor kA{"a", DType::kF32, {1, 2}};
const ExpectedTensor kB{"b", DType::kBf16, {2}};

Status MatchStatus(const std::vector<ExpectedTensor>& expected) {
  const Checkpoint checkpoint = OpenPair();
  return WeightSet::Match(checkpoint, expected).status();
}

bool Mentions(const Status& status, const std::string& part) {
  return status.message().find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("an exact match gives every tensor once", "[weight_set]") {
  const Checkpoint checkpoint = OpenPair();
  auto set = WeightSet::Match(checkpoint, {kB, kA});
  REQUIRE(set.ok());
  const auto a = set->Take("a");
  REQUIRE(a.size() == 8);
  CHECK(std::memcmp(a.data(), "abcdefgh", 8) == 0);
  const auto b = set->Take("b");
  REQUIRE(b.size() == 4);
  CHECK(std::memcmp(b.data(), "ijkl", 4) == 0);
  CHECK(set->CheckAllTaken().ok());
}

TEST_CASE("a missing tensor is named with what is needed", "[weight_set]") {
  const Status status = MatchStatus({kA, kB, {"c", DType::kI64, {7, 3}}});
  CHECK(status.code() == StatusCode::kNotFound);
  CHECK(Mentions(status, "'c' is missing, needs I64 [7, 3]"));
}

TEST_CASE("a surplus tensor is named", "[weight_set]") {
  const Status status = MatchStatus({kA});
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK(Mentions(status, "'b' (BF16 [2]) is not part of the model"));
}

TEST_CASE("a differing dtype is named with both sides", "[weight_set]") {
  CHECK(Mentions(MatchStatus({{"a", DType::kI32, {1, 2}}, kB}),
                 "'a' is F32 [1, 2], needs I32 [1, 2]"));
}

TEST_CASE("a shape with equal element count but other dimensions differs", "[weight_set]") {
  CHECK(Mentions(MatchStatus({{"a", DType::kF32, {2, 1}}, kB}),
                 "'a' is F32 [1, 2], needs F32 [2, 1]"));
}

TEST_CASE("only the first difference is named and the others are counted", "[weight_set]") {
  const Status status = MatchStatus({{"a", DType::kF32, {2}}, {"c", DType::kF32, {1}}});
  CHECK(Mentions(status, "'a' is"));
  CHECK(Mentions(status, "2 further tensors differ"));
  CHECK_FALSE(Mentions(status, "'c'"));
}

TEST_CASE("a tensor that the loader forgot is data loss", "[weight_set]") {
  const Checkpoint checkpoint = OpenPair();
  auto set = WeightSet::Match(checkpoint, {kA, kB});
  REQUIRE(set.ok());
  set->Take("a");
  const Status status = set->CheckAllTaken();
  CHECK(status.code() == StatusCode::kDataLoss);
  CHECK(Mentions(status, "'b' was never loaded; 1 of 2"));
}

}  // namespace firesteel
