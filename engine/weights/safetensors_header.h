// Readers of the two JSON texts of a checkpoint: the header of a safetensors file and model.safetensors.index.json.
//
// Both texts are untrusted. They are read as a stream of events against a fixed grammar, so nesting depth, array
// lengths and value types are bounded by the grammar and no document tree is built. Called by safetensors.cc only;
// the functions are pure. They check the grammar; whether offsets and shapes agree with the file is the caller's part.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"

namespace firesteel {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;           // as written, any string
  std::vector<int64_t> shape;  // at most 8 dimensions, each 0..2^48
  int64_t begin_byte = 0;      // offsets into the data area, 0..2^62
  int64_t end_byte = 0;
};

struct ShardIndexEntry {
  std::string tensor;
  std::string file_name;  // a plain name: no directory part
};

// Entries in file order, names unique. `__metadata__` is checked to map strings to strings and dropped.
Result<std::vector<SafetensorsEntry>> ReadSafetensorsHeader(std::string_view json,
                                                            const std::string& where);

// Entries in file order, tensor names unique. Keys other than `weight_map` are skipped.
Result<std::vector<ShardIndexEntry>> ReadShardIndex(std::string_view json,
                                                    const std::string& where);

// `name` in quotes for an error message, cut to a printable length: names come from untrusted files.
std::string QuotedName(std::string_view name);

}  // namespace firesteel
