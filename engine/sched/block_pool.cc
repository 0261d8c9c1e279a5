#include "engine/sched/block_pool.h"

#include <string>

#include "kernels/core/check.h"

namespace firesteel {

BlockPool::BlockPool(int32_t num_blocks) : references_(static_cast<size_t>(num_blocks), 0) {
  free_.reserve(references_.size());
  for (int32_t i = num_blocks - 1; i >= 0; --i) free_.push_back(BlockId{i});
}

BlockId BlockPool::Allocate() {
  FIRESTEEL_CHECK(!free_.empty(), "no free block");
  const BlockId block = free_.back();
  free_.pop_back();
  references_[Index(block)] = 1;
  return block;
}

void BlockPool::Release(BlockId block) {
  FIRESTEEL_CHECK(block.value >= 0 && block.value < num_blocks() && references(block) > 0,
                  "block " + std::to_string(block.value) + " is not in use");
  if (--references_[Index(block)] == 0) free_.push_back(block);
}

}  // namespace firesteel
