// PrefixIndex: which blocks hold the caches of which token prefix.
//
// Prefixes are cut into units of block_tokens() tokens, the least that is whole blocks in every cache group. A node is
// one unit behind its parent's prefix; it names the blocks of every group that hold the unit's positions. Children are
// found by a chained hash of the tokens and then compared token by token, so a collision never shares a block. Ids
// only: the pools count references, the cache manager keeps both in step. Scheduler thread only. Invariants:
//   1. a node has all its blocks of the groups that retain everything. When one goes, the node goes, and with it
//      everything behind it: nothing could reach it any more. So nodes never outnumber blocks.
//   2. a block of a windowed group may be missing; then no hit ends where it is needed.
//   3. a block belongs to one node at most.
// A block of a windowed group may lack the rows of the draft stages. A hit on it is as good for whoever does not draft.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/plan/cache_spec.h"
#include "engine/plan/ids.h"
#include "kernels/core/status.h"

namespace firesteel {

// The longest usable prefix: a path of nodes from the first unit on. Valid until the index changes.
struct PrefixHit {
  int32_t length = 0;         // tokens, a multiple of the unit
  std::vector<int32_t> path;  // [length / unit] nodes
};

class PrefixIndex {
 public:
  using HashFunction = uint64_t (*)(uint64_t parent_hash, std::span<const int32_t> tokens);
  static uint64_t HashTokens(uint64_t parent_hash, std::span<const int32_t> tokens);

  // A node that may be gone by now. The default is the root, which is always there.
  struct NodeRef {
    int32_t node = -1;
    uint64_t serial = 0;
  };
  struct GroupBlock {
    int32_t group;
    BlockId block;
  };

  // num_blocks[group] is the capacity of the group's pool. REQUIRES: some group retains everything.
  PrefixIndex(const CacheSpec& spec, std::span<const int32_t> num_blocks,
              HashFunction hash = HashTokens);

  int32_t block_tokens() const { return unit_; }
  // Blocks of a group that hold one unit.
  int32_t blocks_per_unit(int32_t group) const;
  // First block table entry of a group that a sequence with `length` valid positions reads.
  int32_t FirstEntry(int32_t group, int32_t length) const;

  // The longest prefix of `tokens` whose blocks are all there, with `needs_drafts` none that lacks draft rows, and number
  // at most max_blocks.
  PrefixHit Match(std::span<const int32_t> tokens, int32_t max_blocks,
                  bool needs_drafts = false) const;

  bool Contains(const NodeRef& ref) const;
  NodeRef RefTo(int32_t node) const;
  int32_t Find(int32_t parent, std::span<const int32_t> tokens) const;  // -1: no such child
  int32_t num_nodes() const { return num_nodes_; }

  // Adds a child without blocks; the caller sets those of the retaining groups at once. REQUIRES: Find() < 0.
  int32_t Insert(int32_t parent, std::span<const int32_t> tokens);
  BlockId block(int32_t node, int32_t group, int32_t piece) const;
  // REQUIRES: the place is empty and the block is in no node.
  void SetBlock(int32_t node, int32_t group, int32_t piece, BlockId block,
                bool lacks_drafts = false);
  // REQUIRES: the block is indexed.
  bool LacksDrafts(int32_t group, BlockId block) const;

  // Gives up one block and whatever cannot be reached without it. Appends all blocks that left, this one included.
  void Forget(int32_t group, BlockId block, std::vector<GroupBlock>* left);

  // Where a block is indexed; node -1: it is not.
  struct Place {
    int32_t node = -1;
    int32_t depth = -1;  // units before this node's
    int32_t piece = -1;
  };
  Place PlaceOf(int32_t group, BlockId block) const;
  // Whether the path to `node` spells the first tokens of `tokens`.
  bool Spells(int32_t node, std::span<const int32_t> tokens) const;

  // Internal names the first broken invariant.
  Status Check() const;

 private:
  struct Node {
    bool used = false;
    uint64_t serial = 0;
    uint64_t hash = 0;
    int32_t parent = -1;
    int32_t depth = 0;
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    int32_t previous_sibling = -1;
    std::vector<int32_t> tokens;  // [unit]
    std::vector<BlockId> blocks;  // every group's pieces, see first_piece_
  };

  Node& at(int32_t node) { return nodes_[static_cast<size_t>(node)]; }
  const Node& at(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }
  size_t Slot(int32_t group, int32_t piece) const;
  bool retains_all(int32_t group) const;
  bool HasBlocks(std::span<const int32_t> path, int32_t length, int32_t max_blocks,
                 bool needs_drafts) const;
  void Detach(int32_t node);
  void RemoveSubtree(int32_t node, std::vector<GroupBlock>* left);

  // Constant after construction.
  CacheSpec spec_;
  HashFunction hash_;
  int32_t unit_ = 1;
  std::vector<int32_t> first_piece_;  // [groups + 1]

  std::vector<Node> nodes_;
  std::vector<int32_t> unused_;
  std::unordered_multimap<uint64_t, int32_t> by_hash_;
  std::vector<std::vector<int32_t>> node_of_;    // [groups][blocks] node or -1
  std::vector<std::vector<bool>> lacks_drafts_;  // [groups][blocks] of those in a node
  uint64_t next_serial_ = 1;
  int32_t num_nodes_ = 0;
};

}  // namespace firesteel
