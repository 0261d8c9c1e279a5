// Byte-pair merging of one pre-tokenised piece: starts from its bytes and applies the merge of the lowest rank,
// leftmost first, until none applies. Immutable after construction; any thread may call it with its own Workspace.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace firesteel {

class BpeMerger {
 public:
  // Buffers of one call, kept by the caller so that a text of many pieces allocates once.
  class Workspace {
    friend class BpeMerger;
    struct Symbol {
      int32_t id;    // -1: merged into the symbol before it
      int64_t prev;  // -1: none
      int64_t next;  // -1: none
    };
    struct Candidate {
      int32_t rank;
      int64_t position;  // of the left symbol
      int32_t left_id;
      int32_t right_id;
      int32_t merged_id;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // `byte_ids` are the tokens of single bytes.
  explicit BpeMerger(const std::array<int32_t, 256>& byte_ids) : byte_ids_(byte_ids) {}

  // False when the pair has a merge already.
  bool AddMerge(int32_t left_id, int32_t right_id, int32_t rank, int32_t merged_id);

  // Appends the ids of `piece`. O(n log n) in its bytes.
  void Encode(std::string_view piece, Workspace* workspace, std::vector<int32_t>* ids) const;

 private:
  struct Merge {
    int32_t rank;
    int32_t merged_id;
  };

  void PushCandidate(int64_t left, Workspace* workspace) const;
  void ApplyMerges(Workspace* workspace) const;

  std::array<int32_t, 256> byte_ids_;
  std::unordered_map<uint64_t, Merge> merges_;  // key: left id << 32 | right id
};

}  // namespace firesteel
