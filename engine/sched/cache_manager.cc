#include "engine/sched/cache_manager.h"

#include <algorithm>
#include <limits>

#include "kernels/core/check.h"
#include "kernels/core/math.h"

namespace firesteel {

void AppendList::Add(const PlanAppend& append) {
  FIRESTEEL_CHECK(room() > 0, "the plan has no room for another block append");
  out_[static_cast<size_t>(count_++)] = append;
}

int64_t BlocksToHold(const CacheGroupSpec& group, int32_t lookahead_tokens, int64_t length,
                     int32_t rows) {
  const int64_t block_tokens = group.block_tokens;
  const int64_t whole = CeilDiv(length + lookahead_tokens, block_tokens);
  if (group.retained_tokens == 0) return whole;
  const int64_t span = int64_t{group.retained_tokens} + rows + lookahead_tokens;
  return std::min(whole, CeilDiv(span - 1, block_tokens) + 1);
}

CacheManager::CacheManager(const CacheSpec& spec, std::span<const int32_t> num_blocks,
                           int32_t num_slots)
    : spec_(spec), num_slots_(num_slots) {
  FIRESTEEL_CHECK(num_blocks.size() == spec.groups.size(), "one pool per cache group");
  pools_.reserve(num_blocks.size());
  for (const int32_t count : num_blocks) pools_.emplace_back(count);
  tables_.resize(spec.groups.size() * static_cast<size_t>(num_slots));
}

const CacheManager::BlockTable& CacheManager::table(int32_t group, SlotId slot) const {
  return tables_[static_cast<size_t>(group) * static_cast<size_t>(num_slots_) +
                 static_cast<size_t>(slot.value)];
}

CacheManager::BlockTable& CacheManager::MutableTable(int32_t group, SlotId slot) {
  return const_cast<BlockTable&>(table(group, slot));
}

int32_t CacheManager::EntriesFor(int32_t group, int32_t length_upper_bound) const {
  return CeilDiv(length_upper_bound + spec_.lookahead_tokens,
                 spec_.groups[static_cast<size_t>(group)].block_tokens);
}

int32_t CacheManager::FirstRetainedEntry(int32_t group, SlotId slot,
                                         int32_t committed_length) const {
  const CacheGroupSpec& spec = spec_.groups[static_cast<size_t>(group)];
  const BlockTable& t = table(group, slot);
  if (spec.retained_tokens == 0 || committed_length <= spec.retained_tokens) return t.first_mapped;
  const int32_t entry = (committed_length - spec.retained_tokens) / spec.block_tokens;
  return Max(t.first_mapped, Min(entry, static_cast<int32_t>(t.blocks.size())));
}

int32_t CacheManager::RowsThatFit(SlotId slot, int32_t committed_length) const {
  int64_t rows = std::numeric_limits<int32_t>::max();
  for (int32_t g = 0; g < num_groups(); ++g) {
    const BlockTable& t = table(g, slot);
    const int32_t old = FirstRetainedEntry(g, slot, committed_length) - t.first_mapped;
    const int64_t entries = static_cast<int64_t>(t.blocks.size()) + pool(g).num_free() + old;
    const int64_t positions = entries * spec_.groups[static_cast<size_t>(g)].block_tokens;
    rows = std::min(rows, positions - spec_.lookahead_tokens - committed_length);
  }
  return CheckedCast<int32_t>(rows);
}

int32_t CacheManager::AppendsToReserve(SlotId slot, int32_t length_upper_bound) const {
  int32_t count = 0;
  for (int32_t g = 0; g < num_groups(); ++g) {
    const int32_t entries = static_cast<int32_t>(table(g, slot).blocks.size());
    count += Max(0, EntriesFor(g, length_upper_bound) - entries);
  }
  return count;
}

int32_t CacheManager::AppendsToReleaseOld(SlotId slot, int32_t committed_length) const {
  int32_t count = 0;
  for (int32_t g = 0; g < num_groups(); ++g) {
    count += FirstRetainedEntry(g, slot, committed_length) - table(g, slot).first_mapped;
  }
  return count;
}

void CacheManager::Reserve(SlotId slot, int32_t length_upper_bound, AppendList* list) {
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& t = MutableTable(g, slot);
    const int32_t entries = EntriesFor(g, length_upper_bound);
    while (static_cast<int32_t>(t.blocks.size()) < entries) {
      const BlockId block = pools_[static_cast<size_t>(g)].Allocate();
      list->Add({.group = g,
                 .slot = slot.value,
                 .index = static_cast<int32_t>(t.blocks.size()),
                 .block = block.value});
      t.blocks.push_back(block);
    }
  }
}

void CacheManager::ReleaseOld(SlotId slot, int32_t committed_length, AppendList* list) {
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& t = MutableTable(g, slot);
    const int32_t first_retained = FirstRetainedEntry(g, slot, committed_length);
    for (; t.first_mapped < first_retained; ++t.first_mapped) {
      BlockId& block = t.blocks[static_cast<size_t>(t.first_mapped)];
      pools_[static_cast<size_t>(g)].Release(block);
      block = BlockId{};
      list->Add({.group = g, .slot = slot.value, .index = t.first_mapped, .block = -1});
    }
  }
}

void CacheManager::ReleaseAll(SlotId slot) {
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& t = MutableTable(g, slot);
    for (size_t i = static_cast<size_t>(t.first_mapped); i < t.blocks.size(); ++i) {
      pools_[static_cast<size_t>(g)].Release(t.blocks[i]);
    }
    t.blocks.clear();
    t.first_mapped = 0;
  }
}

}  // namespace firesteel
