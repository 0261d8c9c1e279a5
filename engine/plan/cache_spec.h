// What the scheduler may know of a model's caches: block sizes and retention, never an address.
//
// Every cache of a model (target layers and draft stages alike) belongs to one *cache group*. A group has its own pool of
// blocks and each sequence has one block table per group. Position p of a sequence lives in entry p / block_tokens of
// that table, so a rejected speculative row is undone by the next write to the same position (no roll-back step).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace firesteel {

struct CacheGroupSpec {
  std::string name;             // "context", "window"
  int32_t block_tokens = 0;     // positions covered by one block
  int64_t bytes_per_block = 0;  // all layers together; what the memory plan counts
  // Positions behind the next one that must stay readable; 0 keeps all. A block whose positions are all older may be
  // released while its sequence runs.
  int32_t retained_tokens = 0;
};

struct CacheSpec {
  std::vector<CacheGroupSpec> groups;
  // A step may write this many positions past the last committed one (verify rows and the draft block); blocks must be
  // reserved for them before the step is planned.
  int32_t lookahead_tokens = 0;
};

}  // namespace firesteel
