// Read-only, memory-mapped view of a checkpoint directory: model.safetensors, or the shards that
// model.safetensors.index.json lists.
//
// Every byte of the headers is untrusted: lengths, offsets, shapes and the index are checked against the file sizes
// before use, so a truncated or hostile file gives a Status and never an out-of-range view. As the format demands,
// the tensors of a file tile its data area: no hole, no overlap, no trailing bytes.
// Tensor data is as aligned as the file makes it: writers usually align to 8 bytes, but nothing enforces even the
// element size, so readers check the address before they cast, or copy. The files must not be changed while they are mapped: a
// file that is cut short later raises SIGBUS on access.
// Thread safety: immutable after Open; any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/status.h"

namespace firesteel {

struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  // As stored; for kF4E2M1x2 the last dimension counts bytes (two columns each).
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // into the mapping; lives as long as the Checkpoint
};

// Parses one safetensors image (header and data) that the caller keeps alive. Used by Checkpoint and the fuzz target.
// `where` names the file in errors.
Result<std::vector<StoredTensor>> ParseSafetensors(std::span<const std::byte> image,
                                                   const std::string& where);

class Checkpoint {
 public:
  static Result<Checkpoint> Open(const std::string& directory);
  // One safetensors file on its own (test fixtures).
  static Result<Checkpoint> OpenFile(const std::string& path);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  // nullptr when there is no such tensor.
  const StoredTensor* Find(const std::string& name) const;
  const std::vector<StoredTensor>& tensors() const { return tensors_; }

 private:
  class MappedFile;
  Checkpoint();
  Status AddFile(const std::string& path);
  Status AddShards(const std::string& directory, const std::string& index_path);

  std::vector<std::unique_ptr<MappedFile>> files_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace firesteel
