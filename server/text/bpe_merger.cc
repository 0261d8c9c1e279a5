#include "server/text/bpe_merger.h"

#include <algorithm>

namespace firesteel {
namespace {

uint64_t PairKey(int32_t left_id, int32_t right_id) {
  return uint64_t{static_cast<uint32_t>(left_id)} << 32 | static_cast<uint32_t>(right_id);
}

// Heap order of the standard library: the smallest (rank, position) on top.
template <typename Candidate>
bool After(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

bool BpeMerger::AddMerge(int32_t left_id, int32_t right_id, int32_t rank, int32_t merged_id) {
  return merges_.emplace(PairKey(left_id, right_id), Merge{rank, merged_id}).second;
}

void BpeMerger::PushCandidate(int64_t left, Workspace* workspace) const {
  if (left < 0) return;
  const Workspace::Symbol& symbol = workspace->symbols[static_cast<size_t>(left)];
  if (symbol.next < 0) return;
  const int32_t right_id = workspace->symbols[static_cast<size_t>(symbol.next)].id;
  const auto merge = merges_.find(PairKey(symbol.id, right_id));
  if (merge == merges_.end()) return;
  workspace->heap.push_back(
      {merge->second.rank, left, symbol.id, right_id, merge->second.merged_id});
  std::push_heap(workspace->heap.begin(), workspace->heap.end(), After<Workspace::Candidate>);
}

void BpeMerger::ApplyMerges(Workspace* workspace) const {
  std::vector<Workspace::Symbol>& symbols = workspace->symbols;
  std::vector<Workspace::Candidate>& heap = workspace->heap;
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), After<Workspace::Candidate>);
    const Workspace::Candidate candidate = heap.back();
    heap.pop_back();
    Workspace::Symbol& left = symbols[static_cast<size_t>(candidate.position)];
    // An earlier merge may have changed either side since the candidate was pushed.
    if (left.id != candidate.left_id || left.next < 0) continue;
    Workspace::Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (right.id != candidate.right_id) continue;
    left.id = candidate.merged_id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].prev = candidate.position;
    PushCandidate(left.prev, workspace);
    PushCandidate(candidate.position, workspace);
  }
}

void BpeMerger::Encode(std::string_view piece, Workspace* workspace,
                       std::vector<int32_t>* ids) const {
  const int64_t byte_count = static_cast<int64_t>(piece.size());
  workspace->symbols.clear();
  workspace->heap.clear();
  for (int64_t i = 0; i < byte_count; ++i) {
    const auto byte = static_cast<uint8_t>(piece[static_cast<size_t>(i)]);
    workspace->symbols.push_back({byte_ids_[byte], i - 1, i + 1 < byte_count ? i + 1 : -1});
  }
  for (int64_t i = 0; i + 1 < byte_count; ++i) PushCandidate(i, workspace);
  ApplyMerges(workspace);
  for (const Workspace::Symbol& symbol : workspace->symbols) {
    if (symbol.id >= 0) ids->push_back(symbol.id);
  }
}

}  // namespace firesteel
