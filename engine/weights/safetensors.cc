#include "engine/weights/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/weights/safetensors_header.h"

namespace firesteel {
namespace {

constexpr int64_t kLengthFieldBytes = 8;
// The limit of the format's own reader; also bounds the index file.
constexpr int64_t kMaxHeaderBytes = 100'000'000;

constexpr DType kKnownDTypes[] = {DType::kF32,      DType::kBf16, DType::kF8E4M3, DType::kF8E8M0,
                                  DType::kF4E2M1x2, DType::kI32,  DType::kI64};

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const DType dtype : kKnownDTypes) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return std::nullopt;
}

// Bytes of a tensor, or nullopt when the product does not fit.
std::optional<int64_t> TensorBytes(const std::vector<int64_t>& shape, DType dtype) {
  int64_t bytes = DTypeBytes(dtype);
  for (const int64_t dimension : shape) {
    if (__builtin_mul_overflow(bytes, dimension, &bytes)) return std::nullopt;
  }
  return bytes;
}

uint64_t LoadLittleEndian64(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (int i = 0; i < kLengthFieldBytes; ++i) {
    value |= std::to_integer<uint64_t>(bytes[static_cast<size_t>(i)]) << (8 * i);
  }
  return value;
}

// The header text, checked against the size of the image.
Result<std::string_view> HeaderText(std::span<const std::byte> image, const std::string& where) {
  const int64_t image_bytes = static_cast<int64_t>(image.size());
  if (image_bytes < kLengthFieldBytes) {
    return DataLoss(where + ": has " + std::to_string(image_bytes) + " bytes, needs at least " +
                    std::to_string(kLengthFieldBytes));
  }
  const uint64_t header_bytes = LoadLittleEndian64(image);
  if (header_bytes > static_cast<uint64_t>(image_bytes - kLengthFieldBytes)) {
    return DataLoss(where + ": header length is " + std::to_string(header_bytes) + ", but only " +
                    std::to_string(image_bytes - kLengthFieldBytes) + " bytes follow");
  }
  if (header_bytes > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return DataLoss(where + ": header length is " + std::to_string(header_bytes) +
                    ", needs at most " + std::to_string(kMaxHeaderBytes));
  }
  const auto* text = reinterpret_cast<const char*>(image.data() + kLengthFieldBytes);
  const std::string_view header(text, static_cast<size_t>(header_bytes));
  if (header.empty() || header.front() != '{') {
    return DataLoss(where + ": header does not start with '{'");
  }
  return header;
}

Result<StoredTensor> CheckEntry(SafetensorsEntry entry, std::span<const std::byte> data,
                                const std::string& where) {
  const std::string tensor = where + ": tensor " + QuotedName(entry.name);
  const std::optional<DType> dtype = DTypeFromName(entry.dtype);
  if (!dtype) {
    return Unsupported(tensor + " has the dtype " + QuotedName(entry.dtype) +
                       ", needs one of F32, BF16, F8_E4M3, F8_E8M0, I8, I32, I64");
  }
  const int64_t data_bytes = static_cast<int64_t>(data.size());
  if (entry.begin_byte > entry.end_byte || entry.end_byte > data_bytes) {
    return DataLoss(tensor + " has the data_offsets [" + std::to_string(entry.begin_byte) + ", " +
                    std::to_string(entry.end_byte) + "], needs a range inside the " +
                    std::to_string(data_bytes) + " bytes of data");
  }
  const std::optional<int64_t> needed_bytes = TensorBytes(entry.shape, *dtype);
  const int64_t found_bytes = entry.end_byte - entry.begin_byte;
  if (!needed_bytes || *needed_bytes != found_bytes) {
    return DataLoss(tensor + " has " + std::to_string(found_bytes) +
                    " bytes of data, its shape needs " +
                    (needed_bytes ? std::to_string(*needed_bytes) : "more than 2^63"));
  }
  return StoredTensor{
      std::move(entry.name), *dtype, std::move(entry.shape),
      data.subspan(static_cast<size_t>(entry.begin_byte), static_cast<size_t>(found_bytes))};
}

// The tensors must tile the data area: no byte unused, none used twice.
Status CheckTiling(const std::vector<StoredTensor>& tensors, std::span<const std::byte> data,
                   const std::string& where) {
  std::vector<const StoredTensor*> by_offset;
  by_offset.reserve(tensors.size());
  for (const StoredTensor& tensor : tensors) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(), [](const StoredTensor* a, const StoredTensor* b) {
    return std::pair(a->data.data(), a->data.size()) < std::pair(b->data.data(), b->data.size());
  });
  size_t covered_bytes = 0;
  for (const StoredTensor* tensor : by_offset) {
    const size_t begin = static_cast<size_t>(tensor->data.data() - data.data());
    if (begin != covered_bytes) {
      return DataLoss(where + ": tensor " + QuotedName(tensor->name) + " begins at data byte " +
                      std::to_string(begin) + ", needs " + std::to_string(covered_bytes) +
                      " (the end of the tensor before it)");
    }
    covered_bytes += tensor->data.size();
  }
  if (covered_bytes != data.size()) {
    return DataLoss(where + ": the tensors cover " + std::to_string(covered_bytes) +
                    " bytes of data, the file has " + std::to_string(data.size()));
  }
  return Status::Ok();
}

std::string ErrnoText(int error) { return std::generic_category().message(error); }

}  // namespace

Result<std::vector<StoredTensor>> ParseSafetensors(std::span<const std::byte> image,
                                                   const std::string& where) {
  FIRESTEEL_ASSIGN_OR_RETURN(const std::string_view header, HeaderText(image, where));
  const std::span<const std::byte> data =
      image.subspan(static_cast<size_t>(kLengthFieldBytes) + header.size());
  FIRESTEEL_ASSIGN_OR_RETURN(std::vector<SafetensorsEntry> entries,
                             ReadSafetensorsHeader(header, where));
  std::vector<StoredTensor> tensors;
  tensors.reserve(entries.size());
  for (SafetensorsEntry& entry : entries) {
    FIRESTEEL_ASSIGN_OR_RETURN(StoredTensor tensor, CheckEntry(std::move(entry), data, where));
    tensors.push_back(std::move(tensor));
  }
  FIRESTEEL_RETURN_IF_ERROR(CheckTiling(tensors, data, where));
  return tensors;
}

// Owns one mapping; unmaps on destruction.
class Checkpoint::MappedFile {
 public:
  static Result<std::unique_ptr<MappedFile>> Map(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      const std::string message = path + ": cannot be opened: " + ErrnoText(errno);
      return errno == ENOENT ? NotFound(message) : Internal(message);
    }
    Result<std::unique_ptr<MappedFile>> file = MapDescriptor(fd, path);
    close(fd);  // the mapping keeps the file
    return file;
  }

  ~MappedFile() { munmap(address_, bytes_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> image() const {
    return {static_cast<const std::byte*>(address_), bytes_};
  }

 private:
  MappedFile(void* address, size_t bytes) : address_(address), bytes_(bytes) {}

  static Result<std::unique_ptr<MappedFile>> MapDescriptor(int fd, const std::string& path) {
    struct stat info {};
    if (fstat(fd, &info) != 0) {
      return Internal(path + ": cannot be examined: " + ErrnoText(errno));
    }
    if (!S_ISREG(info.st_mode)) return InvalidArgument(path + ": is not a regular file");
    if (info.st_size == 0) return DataLoss(path + ": is empty");
    const size_t bytes = static_cast<size_t>(info.st_size);
    void* address = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (address == MAP_FAILED) {
      return Internal(path + ": " + std::to_string(bytes) +
                      " bytes cannot be mapped: " + ErrnoText(errno));
    }
    return std::unique_ptr<MappedFile>(new MappedFile(address, bytes));
  }

  void* address_;
  size_t bytes_;
};

Checkpoint::Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Status Checkpoint::AddFile(const std::string& path) {
  FIRESTEEL_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Map(path));
  FIRESTEEL_ASSIGN_OR_RETURN(std::vector<StoredTensor> tensors,
                             ParseSafetensors(file->image(), path));
  for (StoredTensor& tensor : tensors) {
    if (!by_name_.emplace(tensor.name, tensors_.size()).second) {
      return DataLoss(path + ": tensor " + QuotedName(tensor.name) + " is in another shard too");
    }
    tensors_.push_back(std::move(tensor));
  }
  files_.push_back(std::move(file));
  return Status::Ok();
}

Result<Checkpoint> Checkpoint::OpenFile(const std::string& path) {
  Checkpoint checkpoint;
  FIRESTEEL_RETURN_IF_ERROR(checkpoint.AddFile(path));
  return checkpoint;
}

Result<Checkpoint> Checkpoint::Open(const std::string& directory) {
  const std::filesystem::path root(directory);
  const std::string single_path = (root / "model.safetensors").string();
  const std::string index_path = (root / "model.safetensors.index.json").string();
  std::error_code ignored;  // an unreadable directory looks like a missing file and is named below
  const bool has_single = std::filesystem::exists(single_path, ignored);
  const bool has_index = std::filesystem::exists(index_path, ignored);
  if (has_single && has_index) {
    return InvalidArgument(directory +
                           ": has model.safetensors and model.safetensors.index.json, needs one "
                           "of them to say which weights to load");
  }
  if (has_single) return OpenFile(single_path);
  if (!has_index) {
    return NotFound(directory + ": has neither model.safetensors nor model.safetensors.index.json");
  }
  Checkpoint checkpoint;
  FIRESTEEL_RETURN_IF_ERROR(checkpoint.AddShards(directory, index_path));
  return checkpoint;
}

namespace {

std::string UnlistedTensor(const std::string& shard, const std::string& tensor,
                           const std::string& index) {
  return shard + ": tensor " + QuotedName(tensor) + " is not listed for this shard in " + index;
}

std::string AbsentTensor(const std::string& shard, const std::string& tensor,
                         const std::string& index) {
  return shard + ": has no tensor " + QuotedName(tensor) + ", but " + index + " lists it there";
}

}  // namespace

Status Checkpoint::AddShards(const std::string& directory, const std::string& index_path) {
  std::vector<ShardIndexEntry> entries;
  {
    FIRESTEEL_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> index,
                               MappedFile::Map(index_path));
    const std::span<const std::byte> image = index->image();
    if (static_cast<int64_t>(image.size()) > kMaxHeaderBytes) {
      return DataLoss(index_path + ": has " + std::to_string(image.size()) +
                      " bytes, needs at most " + std::to_string(kMaxHeaderBytes));
    }
    const std::string_view text(reinterpret_cast<const char*>(image.data()), image.size());
    FIRESTEEL_ASSIGN_OR_RETURN(entries, ReadShardIndex(text, index_path));
  }
  // Sorted, so that the order of tensors and of errors does not depend on the order of the map.
  std::map<std::string, std::map<std::string, bool>> shards;  // file: tensor, found
  for (ShardIndexEntry& entry : entries) {
    shards[entry.file_name].emplace(std::move(entry.tensor), false);
  }
  for (auto& [file_name, promised] : shards) {
    const std::string path = (std::filesystem::path(directory) / file_name).string();
    const size_t first_tensor = tensors_.size();
    const Status added = AddFile(path);
    if (added.code() == StatusCode::kNotFound) {
      return NotFound(added.message() + "; " + index_path + " names this shard");
    }
    FIRESTEEL_RETURN_IF_ERROR(added);
    for (size_t i = first_tensor; i < tensors_.size(); ++i) {
      const auto found = promised.find(tensors_[i].name);
      if (found == promised.end()) {
        return DataLoss(UnlistedTensor(path, tensors_[i].name, index_path));
      }
      found->second = true;
    }
    for (const auto& [tensor, found] : promised) {
      if (!found) {
        return DataLoss(AbsentTensor(path, tensor, index_path));
      }
    }
  }
  return Status::Ok();
}

const StoredTensor* Checkpoint::Find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace firesteel
