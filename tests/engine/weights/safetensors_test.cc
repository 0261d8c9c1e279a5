#include "engine/weights/safetensors.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/weights/temp_checkpoint.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

// Two tensors over 12 bytes, the second one first in the header.
const char kHeader[] =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},)"
    R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})";
const char kData[] = "abcdefghijkl";

Result<std::vector<StoredTensor>> Parse(const std::string& image) {
  return ParseSafetensors({reinterpret_cast<const std::byte*>(image.data()), image.size()}, "file");
}

Status ParseStatus(const std::string& header, const std::string& data) {
  const std::string image = SafetensorsImage(header, data);
  return Parse(image).status();
}

// One tensor entry "t" as a whole header.
std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

bool Mentions(const Status& status, const std::string& part) {
  return status.message().find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a valid file gives its tensors in header order", "[safetensors]") {
  const std::string image = SafetensorsImage(kHeader, kData);
  const auto tensors = Parse(image);
  REQUIRE(tensors.ok());
  REQUIRE(tensors->size() == 2);
  const StoredTensor& b = tensors.value()[0];
  CHECK(b.name == "b");
  CHECK(b.dtype == DType::kBf16);
  CHECK(b.shape == std::vector<int64_t>{2});
  REQUIRE(b.data.size() == 4);
  CHECK(std::memcmp(b.data.data(), "ijkl", 4) == 0);
  const StoredTensor& a = tensors.value()[1];
  CHECK(a.shape == std::vector<int64_t>{1, 2});
  CHECK(std::memcmp(a.data.data(), "abcdefgh", 8) == 0);
}

TEST_CASE("every known dtype is read with its element size", "[safetensors]") {
  const std::pair<DType, int> kinds[] = {
      {DType::kF32, 4},      {DType::kBf16, 2}, {DType::kF8E4M3, 1}, {DType::kF8E8M0, 1},
      {DType::kF4E2M1x2, 1}, {DType::kI32, 4},  {DType::kI64, 8}};
  for (const auto& [dtype, bytes] : kinds) {
    const std::string name = DTypeName(dtype);
    INFO(name);
    const std::string image = SafetensorsImage(
        Entry(name, "[3]", "[0," + std::to_string(3 * bytes) + "]"), std::string(3 * bytes, 'x'));
    const auto tensors = Parse(image);
    REQUIRE(tensors.ok());
    CHECK(tensors.value()[0].dtype == dtype);
  }
}

TEST_CASE("scalars, empty tensors and an empty file of tensors are valid", "[safetensors]") {
  CHECK(ParseStatus(Entry("F32", "[]", "[0,4]"), "abcd").ok());
  CHECK(ParseStatus(Entry("F32", "[0,7]", "[0,0]"), "").ok());
  CHECK(ParseStatus("{}", "").ok());
  CHECK(ParseStatus("{}   \n", "").ok());
}

TEST_CASE("a file cut at any byte is refused", "[safetensors]") {
  const std::string image = SafetensorsImage(kHeader, kData);
  for (size_t kept = 0; kept < image.size(); ++kept) {
    INFO("kept bytes " << kept);
    // A copy of the exact length, so that a sanitizer sees a read past its end.
    const std::vector<std::byte> cut(reinterpret_cast<const std::byte*>(image.data()),
                                     reinterpret_cast<const std::byte*>(image.data()) + kept);
    const auto tensors = ParseSafetensors(cut, "file");
    REQUIRE_FALSE(tensors.ok());
    CHECK(tensors.status().code() == StatusCode::kDataLoss);
  }
}

TEST_CASE("a file with one byte too many is refused", "[safetensors]") {
  const Status status = ParseStatus(kHeader, std::string(kData) + "m");
  CHECK(status.code() == StatusCode::kDataLoss);
  CHECK(Mentions(status, "cover 12 bytes"));
}

TEST_CASE("any single changed byte of the header gives a status or valid views", "[safetensors]") {
  const std::string image = SafetensorsImage(kHeader, kData);
  const size_t header_end = image.size() - std::strlen(kData);
  int64_t accepted = 0;
  for (size_t position = 0; position < header_end; ++position) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = image;
      changed[position] = static_cast<char>(value);
      const auto tensors = Parse(changed);
      if (!tensors.ok()) continue;
      ++accepted;
      size_t data_bytes = 0;
      for (const StoredTensor& tensor : tensors.value()) data_bytes += tensor.data.size();
      REQUIRE(data_bytes == std::strlen(kData));
    }
  }
  CHECK(accepted > 0);
}

TEST_CASE("a header length beyond the file is refused before it is used", "[safetensors]") {
  for (const uint64_t length :
       {uint64_t{3}, uint64_t{100'000'001}, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    INFO("length " << length);
    std::string image;
    for (int i = 0; i < 8; ++i) image.push_back(static_cast<char>((length >> (8 * i)) & 0xff));
    image += "{}";
    CHECK(Parse(image).status().code() == StatusCode::kDataLoss);
  }
}

TEST_CASE("a header above the limit of the format is refused", "[safetensors]") {
  std::string header = "{}";
  header.resize(100'000'001, ' ');
  CHECK(Mentions(ParseStatus(header, ""), "needs at most 100000000"));
}

TEST_CASE("an unknown dtype is unsupported and names the tensor", "[safetensors]") {
  for (const char* dtype : {"F64", "F16", "U8", "", "f32", "F8_E5M2"}) {
    const Status status = ParseStatus(Entry(dtype, "[1]", "[0,8]"), "12345678");
    CHECK(status.code() == StatusCode::kUnsupported);
    CHECK(Mentions(status, "'t'"));
  }
}

TEST_CASE("shapes that do not give the stored bytes are refused", "[safetensors]") {
  const char* const shapes[] = {"[1]",
                                "[3]",
                                "[0]",
                                "[-2]",
                                "[2.0]",
                                "[-0]",
                                "[1e1]",
                                "[\"2\"]",
                                "[[2]]",
                                "[null]",
                                "2",
                                "{}",
                                "[18446744073709551616]",
                                "[9223372036854775809,2]",
                                "[4294967296,4294967296]",
                                "[281474976710656,281474976710656,281474976710656]",
                                "[0,281474976710657]",
                                "[1,1,1,1,1,1,1,1,2]"};
  for (const char* shape : shapes) {
    INFO(shape);
    CHECK(ParseStatus(Entry("F32", shape, "[0,8]"), "12345678").code() == StatusCode::kDataLoss);
  }
  CHECK(ParseStatus(Entry("F32", "[2]", "[0,8]"), "12345678").ok());
}

TEST_CASE("data offsets outside the data area are refused", "[safetensors]") {
  const char* const offsets[] = {
      "[0,16]", "[8,0]",    "[4,12]",
      "[0]",    "[]",       "[0,8,8]",
      "[-8,0]", "8",        "[18446744073709551608,18446744073709551615]",
      "[0,4]",  "[0.0,8.0]"};
  for (const char* offset : offsets) {
    INFO(offset);
    CHECK(ParseStatus(Entry("F32", "[2]", offset), "12345678").code() == StatusCode::kDataLoss);
  }
}

TEST_CASE("tensors that overlap are refused", "[safetensors]") {
  const Status status = ParseStatus(R"({"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]},)"
                                    R"("b":{"dtype":"I32","shape":[2],"data_offsets":[4,12]}})",
                                    kData);
  CHECK(Mentions(status, "'b' begins at data byte 4, needs 8"));
}

TEST_CASE("a hole between tensors is refused", "[safetensors]") {
  const Status status = ParseStatus(R"({"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},)"
                                    R"("b":{"dtype":"I32","shape":[1],"data_offsets":[8,12]}})",
                                    kData);
  CHECK(Mentions(status, "'b' begins at data byte 8, needs 4"));
}

TEST_CASE("a name used twice is refused", "[safetensors]") {
  const Status status = ParseStatus(R"({"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},)"
                                    R"("a":{"dtype":"I32","shape":[1],"data_offsets":[4,8]}})",
                                    "12345678");
  CHECK(Mentions(status, "'a' twice"));
}

TEST_CASE("headers outside the grammar are refused", "[safetensors]") {
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  const std::string headers[] = {
      "[]",
      "null",
      "{",
      " {}",
      "{}{}",
      "{} x",
      R"({"t":1})",
      R"({"t":null})",
      R"({"t":[]})",
      R"({"t":"x"})",
      R"({"t":{}})",
      R"({"t":{"dtype":"F32","shape":[2]}})",
      R"({"t":{"dtype":"F32","data_offsets":[0,8]}})",
      R"({"t":{"shape":[2],"data_offsets":[0,8]}})",
      R"({"t":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})",
      "{\"t\":{" + good + R"(,"extra":1}})",
      "{\"t\":{" + good + R"(,"dtype":"F32"}})",
      "{\"t\":{" + good + "},}",
      R"({"__metadata__":[],"t":{)" + good + "}}",
      R"({"__metadata__":{"k":1},"t":{)" + good + "}}",
      R"({"__metadata__":{"k":{}},"t":{)" + good + "}}",
      "{\"\xff\":{" + good + "}}",
      "\xef\xbb\xbf{\"t\":{" + good + "}}",
  };
  for (const std::string& header : headers) {
    INFO(header);
    CHECK(ParseStatus(header, "12345678").code() == StatusCode::kDataLoss);
  }
  CHECK(ParseStatus("{\"t\":{" + good + "}}", "12345678").ok());
}

TEST_CASE("bytes behind a NUL in the header are not hidden", "[safetensors]") {
  CHECK_FALSE(ParseStatus(std::string("{}\0x", 4), "").ok());
}

TEST_CASE("deeply nested headers are refused without recursion", "[safetensors]") {
  std::string brackets = R"({"t":)" + std::string(1'000'000, '[');
  CHECK_FALSE(ParseStatus(brackets, "").ok());
  std::string objects = R"({"__metadata__":)";
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  CHECK_FALSE(ParseStatus(objects, "").ok());
}

TEST_CASE("a giant tensor name is cut in the error", "[safetensors]") {
  const std::string name(1'000'000, 'n');
  const Status status = ParseStatus("{\"" + name + "\":1}", "");
  REQUIRE_FALSE(status.ok());
  CHECK(status.message().size() < 1000);
}

TEST_CASE("OpenFile maps one file and finds tensors by name", "[safetensors]") {
  const TempDirectory directory;
  const auto checkpoint =
      Checkpoint::OpenFile(directory.Write("x.safetensors", SafetensorsImage(kHeader, kData)));
  REQUIRE(checkpoint.ok());
  REQUIRE(checkpoint->Find("a") != nullptr);
  CHECK(std::memcmp(checkpoint->Find("a")->data.data(), "abcdefgh", 8) == 0);
  CHECK(checkpoint->Find("c") == nullptr);
}

TEST_CASE("views stay valid when a checkpoint is moved", "[safetensors]") {
  const TempDirectory directory;
  auto opened =
      Checkpoint::OpenFile(directory.Write("x.safetensors", SafetensorsImage(kHeader, kData)));
  REQUIRE(opened.ok());
  const std::byte* const data = opened->Find("b")->data.data();
  const Checkpoint moved = std::move(opened).value();
  REQUIRE(moved.Find("b") != nullptr);
  CHECK(moved.Find("b")->data.data() == data);
  CHECK(std::memcmp(data, "ijkl", 4) == 0);
}

TEST_CASE("files that cannot be mapped give a status that names them", "[safetensors]") {
  const TempDirectory directory;
  CHECK(Checkpoint::OpenFile(directory.path() + "/none").status().code() == StatusCode::kNotFound);
  CHECK(Checkpoint::OpenFile(directory.path()).status().code() == StatusCode::kInvalidArgument);
  const Status empty = Checkpoint::OpenFile(directory.Write("empty", "")).status();
  CHECK(empty.code() == StatusCode::kDataLoss);
  CHECK(Mentions(empty, directory.path() + "/empty"));
  CHECK(Checkpoint::Open(directory.path()).status().code() == StatusCode::kNotFound);
}

namespace {

const std::string kShardA = SafetensorsImage(Entry("F32", "[1]", "[0,4]"), "aaaa");
const std::string kShardB =
    SafetensorsImage(R"({"u":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})", "bbbb");

Status OpenSharded(const std::string& index) {
  const TempDirectory directory;
  directory.Write("a.safetensors", kShardA);
  directory.Write("b.safetensors", kShardB);
  directory.Write("model.safetensors.index.json", index);
  return Checkpoint::Open(directory.path()).status();
}

}  // namespace

TEST_CASE("an index opens all its shards", "[safetensors]") {
  CHECK(OpenSharded(R"({"metadata":{"total_size":8,"x":[1,{"y":[]}]},)"
                    R"("weight_map":{"u":"b.safetensors","t":"a.safetensors"},"other":null})")
            .ok());
}

TEST_CASE("a tensor of the index that its shard lacks is refused", "[safetensors]") {
  const Status status = OpenSharded(
      R"({"weight_map":{"u":"b.safetensors","t":"a.safetensors","v":"a.safetensors"}})");
  CHECK(status.code() == StatusCode::kDataLoss);
  CHECK(Mentions(status, "has no tensor 'v'"));
}

TEST_CASE("a tensor that the index puts into another shard is refused", "[safetensors]") {
  CHECK(OpenSharded(R"({"weight_map":{"t":"b.safetensors","u":"a.safetensors"}})").code() ==
        StatusCode::kDataLoss);
}

TEST_CASE("a tensor of a shard that the index does not list is refused", "[safetensors]") {
  const TempDirectory directory;
  directory.Write("a.safetensors", SafetensorsImage(kHeader, kData));
  directory.Write("model.safetensors.index.json", R"({"weight_map":{"a":"a.safetensors"}})");
  const Status status = Checkpoint::Open(directory.path()).status();
  CHECK(status.code() == StatusCode::kDataLoss);
  CHECK(Mentions(status, "'b' is not listed"));
}

TEST_CASE("a tensor in two shards is refused", "[safetensors]") {
  const TempDirectory directory;
  directory.Write("a.safetensors", kShardA);
  directory.Write("c.safetensors",
                  SafetensorsImage(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                   R"("u":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})",
                                   "cccc"));
  directory.Write("model.safetensors.index.json",
                  R"({"weight_map":{"t":"a.safetensors","u":"c.safetensors"}})");
  CHECK(Mentions(Checkpoint::Open(directory.path()).status(), "'t' is in another shard too"));
}

TEST_CASE("hostile index files are refused", "[safetensors]") {
  std::string nested = R"({"weight_map":{},"metadata":)";
  for (int i = 0; i < 100'000; ++i) nested += '[';
  const std::string indexes[] = {
      "",
      "[]",
      "{}",
      R"({"weight_map":[]})",
      R"({"weight_map":"a.safetensors"})",
      R"({"weight_map":{"t":1}})",
      R"({"weight_map":{"t":{}}})",
      R"({"weight_map":{"t":"../a.safetensors"}})",
      R"({"weight_map":{"t":"/etc/hostname"}})",
      R"({"weight_map":{"t":"./a.safetensors"}})",
      R"({"weight_map":{"t":".."}})",
      R"({"weight_map":{"t":""}})",
      R"({"weight_map":{"t":"a.safetensors\u0000"}})",
      R"({"weight_map":{"t":"a.safetensors","t":"a.safetensors"}})",
      R"({"weight_map":{"t":"a.safetensors"},"weight_map":{"u":"b.safetensors"}})",
      R"({"weight_map":{"t":"a.safetensors"}}x)",
      nested,
  };
  for (const std::string& index : indexes) {
    INFO(index.substr(0, 100));
    CHECK(OpenSharded(index).code() == StatusCode::kDataLoss);
  }
}

TEST_CASE("a missing shard is named together with the index that names it", "[safetensors]") {
  const Status status = OpenSharded(R"({"weight_map":{"t":"missing.safetensors"}})");
  CHECK(status.code() == StatusCode::kNotFound);
  CHECK(Mentions(status, "missing.safetensors"));
  CHECK(Mentions(status, "model.safetensors.index.json names this shard"));
}

TEST_CASE("a directory with both kinds of checkpoint is refused as ambiguous", "[safetensors]") {
  const TempDirectory directory;
  directory.Write("model.safetensors", kShardA);
  CHECK(Checkpoint::Open(directory.path()).ok());
  directory.Write("model.safetensors.index.json", R"({"weight_map":{"t":"model.safetensors"}})");
  CHECK(Checkpoint::Open(directory.path()).status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("the demo checkpoint opens with 750 tensors", "[safetensors]") {
  const auto checkpoint = Checkpoint::Open(FIRESTEEL_SOURCE_DIR "/configs/demo-v4");
  REQUIRE(checkpoint.ok());
  CHECK(checkpoint->tensors().size() == 750);
  REQUIRE(checkpoint->Find("hc_head_fn") != nullptr);
  CHECK(checkpoint->Find("hc_head_fn")->shape == std::vector<int64_t>{4, 1024});
}

}  // namespace firesteel
