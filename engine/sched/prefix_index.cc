#include "engine/sched/prefix_index.h"

#include <xxhash.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "kernels/core/check.h"
#include "kernels/core/math.h"

namespace firesteel {

uint64_t PrefixIndex::HashTokens(uint64_t parent_hash, std::span<const int32_t> tokens) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), parent_hash);
}

PrefixIndex::PrefixIndex(const CacheSpec& spec, std::span<const int32_t> num_blocks,
                         HashFunction hash)
    : spec_(spec), hash_(hash) {
  bool found = false;
  for (size_t g = 0; g < spec_.groups.size(); ++g) {
    unit_ = std::lcm(unit_, spec_.groups[g].block_tokens);
    found = found || spec_.groups[g].retained_tokens == 0;
    node_of_.emplace_back(static_cast<size_t>(num_blocks[g]), -1);
    lacks_drafts_.emplace_back(static_cast<size_t>(num_blocks[g]), false);
  }
  FIRESTEEL_CHECK(found, "no cache group retains everything");
  first_piece_.push_back(0);
  for (size_t g = 0; g < spec_.groups.size(); ++g) {
    first_piece_.push_back(first_piece_.back() + blocks_per_unit(static_cast<int32_t>(g)));
  }
}

int32_t PrefixIndex::blocks_per_unit(int32_t group) const {
  return unit_ / spec_.groups[static_cast<size_t>(group)].block_tokens;
}

int32_t PrefixIndex::FirstEntry(int32_t group, int32_t length) const {
  const CacheGroupSpec& spec = spec_.groups[static_cast<size_t>(group)];
  if (spec.retained_tokens == 0) return 0;
  return Max(0, length - spec.retained_tokens) / spec.block_tokens;
}

bool PrefixIndex::retains_all(int32_t group) const {
  return spec_.groups[static_cast<size_t>(group)].retained_tokens == 0;
}

size_t PrefixIndex::Slot(int32_t group, int32_t piece) const {
  return static_cast<size_t>(first_piece_[static_cast<size_t>(group)] + piece);
}

PrefixHit PrefixIndex::Match(std::span<const int32_t> tokens, int32_t max_blocks,
                             bool needs_drafts) const {
  const size_t unit = static_cast<size_t>(unit_);
  PrefixHit hit;
  int32_t node = -1;
  for (size_t begin = 0; begin + unit <= tokens.size(); begin += unit) {
    node = Find(node, tokens.subspan(begin, unit));
    if (node < 0) break;
    hit.path.push_back(node);
  }
  while (!hit.path.empty()) {
    hit.length = static_cast<int32_t>(hit.path.size()) * unit_;
    if (HasBlocks(hit.path, hit.length, max_blocks, needs_drafts)) return hit;
    hit.path.pop_back();
  }
  hit.length = 0;
  return hit;
}

bool PrefixIndex::HasBlocks(std::span<const int32_t> path, int32_t length, int32_t max_blocks,
                            bool needs_drafts) const {
  for (int32_t g = 0; g < static_cast<int32_t>(spec_.groups.size()); ++g) {
    const int32_t per_unit = blocks_per_unit(g);
    const int32_t first = FirstEntry(g, length);
    const int32_t end = length / unit_ * per_unit;
    max_blocks -= end - first;
    if (retains_all(g)) continue;
    for (int32_t entry = first; entry < end; ++entry) {
      const int32_t node = path[static_cast<size_t>(entry / per_unit)];
      const BlockId held = block(node, g, entry % per_unit);
      if (!held.valid() || (needs_drafts && LacksDrafts(g, held))) return false;
    }
  }
  return max_blocks >= 0;
}

bool PrefixIndex::Contains(const NodeRef& ref) const {
  return ref.node < 0 || (at(ref.node).used && at(ref.node).serial == ref.serial);
}

PrefixIndex::NodeRef PrefixIndex::RefTo(int32_t node) const {
  return node < 0 ? NodeRef{} : NodeRef{node, at(node).serial};
}

int32_t PrefixIndex::Find(int32_t parent, std::span<const int32_t> tokens) const {
  const uint64_t hash = hash_(parent < 0 ? 0 : at(parent).hash, tokens);
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const Node& node = at(it->second);
    if (node.parent == parent && std::ranges::equal(node.tokens, tokens)) return it->second;
  }
  return -1;
}

int32_t PrefixIndex::Insert(int32_t parent, std::span<const int32_t> tokens) {
  FIRESTEEL_DCHECK(static_cast<int32_t>(tokens.size()) == unit_ && Find(parent, tokens) < 0,
                   "the unit is indexed already");
  if (unused_.empty()) {
    unused_.push_back(static_cast<int32_t>(nodes_.size()));
    nodes_.emplace_back();
  }
  const int32_t index = unused_.back();
  unused_.pop_back();
  ++num_nodes_;
  Node& node = at(index);
  node.used = true;
  node.serial = next_serial_++;
  node.hash = hash_(parent < 0 ? 0 : at(parent).hash, tokens);
  node.parent = parent;
  node.depth = parent < 0 ? 0 : at(parent).depth + 1;
  node.tokens.assign(tokens.begin(), tokens.end());
  node.blocks.assign(static_cast<size_t>(first_piece_.back()), BlockId{});
  node.first_child = node.next_sibling = node.previous_sibling = -1;
  if (parent >= 0) {
    node.next_sibling = at(parent).first_child;
    if (node.next_sibling >= 0) at(node.next_sibling).previous_sibling = index;
    at(parent).first_child = index;
  }
  by_hash_.emplace(node.hash, index);
  return index;
}

BlockId PrefixIndex::block(int32_t node, int32_t group, int32_t piece) const {
  return at(node).blocks[Slot(group, piece)];
}

bool PrefixIndex::LacksDrafts(int32_t group, BlockId block) const {
  return lacks_drafts_[static_cast<size_t>(group)][static_cast<size_t>(block.value)];
}

void PrefixIndex::SetBlock(int32_t node, int32_t group, int32_t piece, BlockId block,
                           bool lacks_drafts) {
  int32_t& owner = node_of_[static_cast<size_t>(group)][static_cast<size_t>(block.value)];
  BlockId& place = at(node).blocks[Slot(group, piece)];
  FIRESTEEL_CHECK(owner < 0 && !place.valid(), "the block or its place is indexed already");
  owner = node;
  place = block;
  lacks_drafts_[static_cast<size_t>(group)][static_cast<size_t>(block.value)] = lacks_drafts;
}

void PrefixIndex::Forget(int32_t group, BlockId block, std::vector<GroupBlock>* left) {
  const Place place = PlaceOf(group, block);
  FIRESTEEL_CHECK(place.node >= 0, "block " + std::to_string(block.value) + " is not indexed");
  if (retains_all(group)) {
    RemoveSubtree(place.node, left);
    return;
  }
  node_of_[static_cast<size_t>(group)][static_cast<size_t>(block.value)] = -1;
  at(place.node).blocks[Slot(group, place.piece)] = BlockId{};
  left->push_back({group, block});
}

void PrefixIndex::Detach(int32_t index) {
  Node& node = at(index);
  if (node.previous_sibling >= 0) {
    at(node.previous_sibling).next_sibling = node.next_sibling;
  } else if (node.parent >= 0) {
    at(node.parent).first_child = node.next_sibling;
  }
  if (node.next_sibling >= 0) at(node.next_sibling).previous_sibling = node.previous_sibling;
  const auto [begin, end] = by_hash_.equal_range(node.hash);
  by_hash_.erase(std::find_if(begin, end, [&](const auto& e) { return e.second == index; }));
}

void PrefixIndex::RemoveSubtree(int32_t root, std::vector<GroupBlock>* left) {
  // Always down to a leaf, which then leaves its parent's list: no stack, however deep the prefix.
  int32_t index = root;
  while (true) {
    while (at(index).first_child >= 0) index = at(index).first_child;
    Node& node = at(index);
    for (int32_t g = 0; g < static_cast<int32_t>(spec_.groups.size()); ++g) {
      for (int32_t piece = 0; piece < blocks_per_unit(g); ++piece) {
        const BlockId held = node.blocks[Slot(g, piece)];
        if (!held.valid()) continue;
        node_of_[static_cast<size_t>(g)][static_cast<size_t>(held.value)] = -1;
        left->push_back({g, held});
      }
    }
    Detach(index);
    node.used = false;
    unused_.push_back(index);
    --num_nodes_;
    if (index == root) return;
    index = node.parent;
  }
}

PrefixIndex::Place PrefixIndex::PlaceOf(int32_t group, BlockId block) const {
  const int32_t index = node_of_[static_cast<size_t>(group)][static_cast<size_t>(block.value)];
  if (index < 0) return {};
  const Node& node = at(index);
  for (int32_t piece = 0; piece < blocks_per_unit(group); ++piece) {
    if (node.blocks[Slot(group, piece)] == block) return {index, node.depth, piece};
  }
  return {};
}

bool PrefixIndex::Spells(int32_t node, std::span<const int32_t> tokens) const {
  const size_t unit = static_cast<size_t>(unit_);
  for (; node >= 0; node = at(node).parent) {
    const size_t begin = static_cast<size_t>(at(node).depth) * unit;
    if (begin + unit > tokens.size()) return false;
    if (!std::ranges::equal(at(node).tokens, tokens.subspan(begin, unit))) return false;
  }
  return true;
}

Status PrefixIndex::Check() const {
  int32_t used = 0;
  size_t placed = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const int32_t index = static_cast<int32_t>(i);
    const Node& node = nodes_[i];
    if (!node.used) continue;
    ++used;
    const std::string where = "prefix node " + std::to_string(i);
    if (node.parent >= 0 && (!at(node.parent).used || at(node.parent).depth + 1 != node.depth)) {
      return Internal(where + " has lost its parent");
    }
    if (Find(node.parent, node.tokens) != index) return Internal(where + " cannot be found");
    for (int32_t g = 0; g < static_cast<int32_t>(spec_.groups.size()); ++g) {
      for (int32_t piece = 0; piece < blocks_per_unit(g); ++piece) {
        const BlockId held = node.blocks[Slot(g, piece)];
        if (!held.valid() && retains_all(g)) return Internal(where + " misses a block");
        if (!held.valid()) continue;
        ++placed;
        const Place place = PlaceOf(g, held);
        if (place.node != index || place.piece != piece) {
          return Internal(where + " names block " + std::to_string(held.value) +
                          ", which is elsewhere");
        }
      }
    }
  }
  for (const std::vector<int32_t>& nodes : node_of_) {
    placed -= static_cast<size_t>(std::ranges::count_if(nodes, [](int32_t n) { return n >= 0; }));
  }
  if (used != num_nodes_ || by_hash_.size() != static_cast<size_t>(used) || placed != 0) {
    return Internal("the prefix index has " + std::to_string(used) + " nodes, counts " +
                    std::to_string(num_nodes_) + " and hashes " + std::to_string(by_hash_.size()));
  }
  return Status::Ok();
}

}  // namespace firesteel
