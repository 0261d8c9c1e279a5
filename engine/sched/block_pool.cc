#include "engine/sched/block_pool.h"

#include <string>

#include "kernels/core/check.h"

namespace firesteel {

BlockPool::BlockPool(int32_t num_blocks)
    : references_(static_cast<size_t>(num_blocks), 0),
      cached_(references_.size(), false),
      next_(references_.size() + 1, num_blocks),
      previous_(references_.size() + 1, num_blocks) {
  vacant_.reserve(references_.size());
  for (int32_t i = num_blocks - 1; i >= 0; --i) vacant_.push_back(BlockId{i});
}

BlockId BlockPool::OldestCached() const {
  return num_idle_ == 0 ? BlockId{} : BlockId{next_.back()};
}

BlockId BlockPool::Allocate() {
  FIRESTEEL_CHECK(!vacant_.empty(), "no vacant block");
  const BlockId block = vacant_.back();
  vacant_.pop_back();
  references_[Index(block)] = 1;
  return block;
}

void BlockPool::Acquire(BlockId block) {
  FIRESTEEL_CHECK(block.value >= 0 && block.value < num_blocks() && cached(block),
                  "block " + std::to_string(block.value) + " holds nothing to share");
  if (references_[Index(block)]++ == 0) Unlink(block.value);
}

void BlockPool::Release(BlockId block) {
  FIRESTEEL_CHECK(block.value >= 0 && block.value < num_blocks() && references(block) > 0,
                  "block " + std::to_string(block.value) + " is not in use");
  if (--references_[Index(block)] > 0) return;
  if (cached(block)) {
    LinkNewest(block.value);
  } else {
    vacant_.push_back(block);
  }
}

void BlockPool::SetCached(BlockId block) {
  FIRESTEEL_CHECK(references(block) > 0 && !cached(block),
                  "block " + std::to_string(block.value) + " cannot be cached");
  cached_[Index(block)] = true;
}

void BlockPool::ClearCached(BlockId block) {
  FIRESTEEL_CHECK(cached(block), "block " + std::to_string(block.value) + " is not cached");
  cached_[Index(block)] = false;
  if (references(block) > 0) return;
  Unlink(block.value);
  vacant_.push_back(block);
}

void BlockPool::LinkNewest(int32_t block) {
  const size_t b = static_cast<size_t>(block);
  const int32_t head = num_blocks();
  next_[b] = head;
  previous_[b] = previous_.back();
  next_[static_cast<size_t>(previous_.back())] = block;
  previous_.back() = block;
  ++num_idle_;
}

void BlockPool::Unlink(int32_t block) {
  const size_t b = static_cast<size_t>(block);
  next_[static_cast<size_t>(previous_[b])] = next_[b];
  previous_[static_cast<size_t>(next_[b])] = previous_[b];
  --num_idle_;
}

}  // namespace firesteel
