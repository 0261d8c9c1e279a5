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
                           int32_t num_slots, bool prefix_cache, PrefixIndex::HashFunction hash)
    : spec_(spec), num_slots_(num_slots), chains_(static_cast<size_t>(num_slots)) {
  FIRESTEEL_CHECK(num_blocks.size() == spec.groups.size(), "one pool per cache group");
  pools_.reserve(num_blocks.size());
  for (const int32_t count : num_blocks) pools_.emplace_back(count);
  tables_.resize(spec.groups.size() * static_cast<size_t>(num_slots));
  if (prefix_cache) index_.emplace(spec, num_blocks, hash);
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
    const int32_t old = CountReleasable(g, slot, committed_length);
    const int64_t entries = static_cast<int64_t>(t.blocks.size()) + pool(g).num_free() + old;
    const int64_t positions = entries * spec_.groups[static_cast<size_t>(g)].block_tokens;
    rows = std::min(rows, positions - spec_.lookahead_tokens - committed_length);
  }
  return CheckedCast<int32_t>(rows);
}

// Old blocks that nobody else maps.
int32_t CacheManager::CountReleasable(int32_t group, SlotId slot, int32_t committed_length) const {
  const BlockTable& t = table(group, slot);
  const auto first = t.blocks.begin() + t.first_mapped;
  const auto end = t.blocks.begin() + FirstRetainedEntry(group, slot, committed_length);
  return static_cast<int32_t>(
      std::count_if(first, end, [&](BlockId block) { return pool(group).references(block) == 1; }));
}

int32_t CacheManager::AppendsToReserve(SlotId slot, int32_t length_upper_bound) const {
  int32_t count = 0;
  for (int32_t g = 0; g < num_groups(); ++g) {
    const BlockTable& t = table(g, slot);
    const int32_t entries = static_cast<int32_t>(t.blocks.size());
    const int32_t announced = Max(t.num_announced, t.first_mapped);
    count += Max(entries, EntriesFor(g, length_upper_bound)) - announced;
  }
  return count;
}

BlockId CacheManager::Take(int32_t group) {
  BlockPool& pool = pools_[static_cast<size_t>(group)];
  if (pool.num_vacant() == 0) {
    left_index_.clear();
    index_->Forget(group, pool.OldestCached(), &left_index_);
    for (const PrefixIndex::GroupBlock& left : left_index_) {
      pools_[static_cast<size_t>(left.group)].ClearCached(left.block);
    }
  }
  return pool.Allocate();
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
    while (static_cast<int32_t>(t.blocks.size()) < entries) t.blocks.push_back(Take(g));
    const int32_t mapped = static_cast<int32_t>(t.blocks.size());
    for (int32_t i = Max(t.num_announced, t.first_mapped); i < mapped; ++i) {
      list->Add({.group = g,
                 .slot = slot.value,
                 .index = i,
                 .block = t.blocks[static_cast<size_t>(i)].value});
    }
    t.num_announced = mapped;
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
    // The end of a prefix is given up before its beginning, without which the end is of no use.
    while (static_cast<int32_t>(t.blocks.size()) > t.first_mapped) {
      pools_[static_cast<size_t>(g)].Release(t.blocks.back());
      t.blocks.pop_back();
    }
    t.blocks.clear();
    t.first_mapped = 0;
    t.num_announced = 0;
  }
  chains_[static_cast<size_t>(slot.value)] = Chain{};
}

PrefixHit CacheManager::Lookup(std::span<const int32_t> tokens, int32_t max_records,
                               bool needs_drafts) const {
  return index_.has_value() ? index_->Match(tokens, max_records, needs_drafts) : PrefixHit{};
}

int32_t CacheManager::NumHeld(const PrefixHit& hit, int32_t group) const {
  if (hit.length == 0) return 0;
  const int32_t per_unit = index_->blocks_per_unit(group);
  const int32_t end = hit.length / index_->block_tokens() * per_unit;
  int32_t count = 0;
  for (int32_t i = index_->FirstEntry(group, hit.length); i < end; ++i) {
    const int32_t node = hit.path[static_cast<size_t>(i / per_unit)];
    count += pool(group).references(index_->block(node, group, i % per_unit)) > 0 ? 1 : 0;
  }
  return count;
}

int32_t CacheManager::Attach(SlotId slot, const PrefixHit& hit) {
  if (hit.length == 0) return 0;
  int32_t draft_begin = 0;
  const int32_t units = hit.length / index_->block_tokens();
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& t = MutableTable(g, slot);
    FIRESTEEL_CHECK(t.blocks.empty(), "the slot maps blocks already");
    const int32_t per_unit = index_->blocks_per_unit(g);
    t.first_mapped = index_->FirstEntry(g, hit.length);
    t.blocks.assign(static_cast<size_t>(t.first_mapped), BlockId{});
    for (int32_t i = t.first_mapped; i < units * per_unit; ++i) {
      const int32_t node = hit.path[static_cast<size_t>(i / per_unit)];
      const BlockId block = index_->block(node, g, i % per_unit);
      pools_[static_cast<size_t>(g)].Acquire(block);
      t.blocks.push_back(block);
      if (index_->LacksDrafts(g, block)) {
        draft_begin = (i + 1) * spec_.groups[static_cast<size_t>(g)].block_tokens;
      }
    }
  }
  chains_[static_cast<size_t>(slot.value)] = {index_->RefTo(hit.path.back()), units};
  return draft_begin;
}

void CacheManager::Commit(SlotId slot, std::span<const int32_t> tokens,
                          const Sequence::DraftGap& gap) {
  if (!index_.has_value()) return;
  Chain& chain = chains_[static_cast<size_t>(slot.value)];
  const int32_t unit = index_->block_tokens();
  const int32_t complete = static_cast<int32_t>(tokens.size()) / unit;
  if (chain.units >= complete) return;
  // Another sequence computed the same prefix first, and its blocks, which the index names, were evicted since.
  if (!index_->Contains(chain.last)) chain = Chain{};
  for (; chain.units < complete; ++chain.units) {
    const std::span<const int32_t> part = tokens.subspan(
        static_cast<size_t>(chain.units) * static_cast<size_t>(unit), static_cast<size_t>(unit));
    chain.last = index_->RefTo(IndexUnit(slot, chain.last.node, chain.units, part, gap));
  }
}

// The node of a unit. A new one takes the slot's blocks; one that is there keeps its own and takes what it misses.
int32_t CacheManager::IndexUnit(SlotId slot, int32_t parent, int32_t depth,
                                std::span<const int32_t> tokens, const Sequence::DraftGap& gap) {
  int32_t node = index_->Find(parent, tokens);
  if (node < 0) node = index_->Insert(parent, tokens);
  for (int32_t g = 0; g < num_groups(); ++g) {
    const BlockTable& t = table(g, slot);
    const int32_t per_unit = index_->blocks_per_unit(g);
    for (int32_t piece = 0; piece < per_unit; ++piece) {
      const BlockId block = t.blocks[static_cast<size_t>(depth * per_unit + piece)];
      if (!block.valid() || index_->block(node, g, piece).valid()) continue;
      const CacheGroupSpec& group = spec_.groups[static_cast<size_t>(g)];
      const int32_t begin = (depth * per_unit + piece) * group.block_tokens;
      // Only the groups that keep a window hold rows of the draft stages.
      const bool lacks_drafts =
          group.retained_tokens > 0 && begin < gap.end && begin + group.block_tokens > gap.begin;
      index_->SetBlock(node, g, piece, block, lacks_drafts);
      pools_[static_cast<size_t>(g)].SetCached(block);
    }
  }
  return node;
}

}  // namespace firesteel
