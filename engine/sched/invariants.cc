#include "engine/sched/invariants.h"

#include <string>
#include <vector>

namespace firesteel {
namespace {

Status Broken(const std::string& what) { return Internal("scheduler invariant: " + what); }

std::string Name(const Sequence& sequence) {
  return "request " + std::to_string(sequence.id().value);
}

Status CheckProgress(const SchedulerConfig& config, const Sequence& s) {
  if (s.retiring()) return Status::Ok();
  if (s.remaining() <= 0) return Broken(Name(s) + " lives on with no output left");
  if (s.max_length() > config.max_model_len) return Broken(Name(s) + " may outgrow the model");
  if (s.phase() == SequencePhase::kPrefill && s.computed() >= s.known()) {
    return Broken(Name(s) + " prefills, but all it knows is computed");
  }
  if (s.phase() == SequencePhase::kDecode && s.computed() != s.known() - 1) {
    return Broken(Name(s) + " decodes with " + std::to_string(s.computed()) + " computed of " +
                  std::to_string(s.known()) + " known tokens");
  }
  return Status::Ok();
}

Status CheckSlots(const Scheduler& scheduler) {
  const SequenceTable& table = scheduler.table();
  const int32_t used = static_cast<int32_t>(table.running().size());
  if (used + table.num_free() != table.num_slots()) {
    return Broken(std::to_string(used) + " used and " + std::to_string(table.num_free()) +
                  " free slots of " + std::to_string(table.num_slots()));
  }
  const Sequence* previous = nullptr;
  for (const Sequence* s : table.running()) {
    if (!s->slot().valid() || table.at(s->slot()) != s) {
      return Broken(Name(*s) + " runs without its slot");
    }
    if (previous != nullptr && previous->arrival() >= s->arrival()) {
      return Broken(Name(*s) + " is out of arrival order");
    }
    previous = s;
    if (s->inflight() < 0 || s->inflight() > (scheduler.step_in_flight() ? 1 : 0)) {
      return Broken(Name(*s) + " has " + std::to_string(s->inflight()) + " steps in flight");
    }
    if (s->retiring() && s->inflight() == 0) return Broken(Name(*s) + " retired, but keeps a slot");
    FIRESTEEL_RETURN_IF_ERROR(CheckProgress(scheduler.config(), *s));
  }
  return Status::Ok();
}

Status CheckQueue(const Scheduler& scheduler) {
  const Sequence* previous = nullptr;
  for (const auto& s : scheduler.queue().waiting()) {
    if (s->slot().valid() || s->announced() || s->computed() != 0 || s->inflight() != 0) {
      return Broken(Name(*s) + " waits, but holds something");
    }
    if (previous != nullptr && previous->arrival() >= s->arrival()) {
      return Broken(Name(*s) + " waits out of arrival order");
    }
    previous = s.get();
    FIRESTEEL_RETURN_IF_ERROR(CheckProgress(scheduler.config(), *s));
  }
  return Status::Ok();
}

// An indexed block sits at its place in the table, and the sequence's tokens are those it is indexed under.
Status CheckContent(const Scheduler& scheduler, int32_t group, SlotId slot, int32_t entry) {
  const PrefixIndex* index = scheduler.cache().prefix_index();
  if (index == nullptr) return Status::Ok();
  const BlockId block = scheduler.cache().table(group, slot).blocks[static_cast<size_t>(entry)];
  const PrefixIndex::Place place = index->PlaceOf(group, block);
  if (place.node < 0) return Status::Ok();
  const Sequence& sequence = *scheduler.table().at(slot);
  if (place.depth * index->blocks_per_unit(group) + place.piece != entry ||
      !index->Spells(place.node, sequence.committed_tokens())) {
    return Broken(Name(sequence) + " maps block " + std::to_string(block.value) + " of group " +
                  std::to_string(group) + ", which is indexed under other tokens");
  }
  return Status::Ok();
}

Status CheckTable(const Scheduler& scheduler, int32_t group, SlotId slot,
                  std::vector<int32_t>* mapped) {
  const CacheManager::BlockTable& table = scheduler.cache().table(group, slot);
  const std::string where =
      "group " + std::to_string(group) + ", slot " + std::to_string(slot.value);
  if (scheduler.table().at(slot) == nullptr && !table.blocks.empty()) {
    return Broken(where + " is free, but maps blocks");
  }
  for (size_t i = 0; i < table.blocks.size(); ++i) {
    const BlockId block = table.blocks[i];
    const bool released = i < static_cast<size_t>(table.first_mapped);
    if (released == block.valid()) return Broken(where + " maps the wrong entries");
    if (released) continue;
    if (++(*mapped)[static_cast<size_t>(block.value)] > 1 &&
        !scheduler.cache().pool(group).cached(block)) {
      return Broken(where + " shares block " + std::to_string(block.value));
    }
    FIRESTEEL_RETURN_IF_ERROR(CheckContent(scheduler, group, slot, static_cast<int32_t>(i)));
  }
  return Status::Ok();
}

// Free blocks are vacant or idle in the index, never both, and the index and the pool agree on which.
Status CheckPool(const CacheManager& cache, int32_t group) {
  const BlockPool& pool = cache.pool(group);
  const std::string where = "group " + std::to_string(group) + ", block ";
  std::vector<bool> vacant(static_cast<size_t>(pool.num_blocks()), false);
  for (const BlockId block : pool.vacant()) {
    if (pool.references(block) > 0 || pool.cached(block) ||
        vacant[static_cast<size_t>(block.value)]) {
      return Broken(where + std::to_string(block.value) + " is vacant, but in use");
    }
    vacant[static_cast<size_t>(block.value)] = true;
  }
  for (int32_t b = 0; b < pool.num_blocks(); ++b) {
    const BlockId block{b};
    const bool indexed =
        cache.prefix_index() != nullptr && cache.prefix_index()->PlaceOf(group, block).node >= 0;
    if (indexed != pool.cached(block)) {
      return Broken(where + std::to_string(b) + " differs between the pool and the index");
    }
    if (pool.references(block) == 0 && !indexed && !vacant[static_cast<size_t>(b)]) {
      return Broken(where + std::to_string(b) + " is lost");
    }
  }
  return Status::Ok();
}

Status CheckBlocks(const Scheduler& scheduler) {
  const CacheManager& cache = scheduler.cache();
  for (int32_t g = 0; g < cache.num_groups(); ++g) {
    const BlockPool& pool = cache.pool(g);
    std::vector<int32_t> mapped(static_cast<size_t>(pool.num_blocks()), 0);
    for (int32_t slot = 0; slot < cache.num_slots(); ++slot) {
      FIRESTEEL_RETURN_IF_ERROR(CheckTable(scheduler, g, SlotId{slot}, &mapped));
    }
    int32_t used = 0;
    for (int32_t block = 0; block < pool.num_blocks(); ++block) {
      const int32_t count = mapped[static_cast<size_t>(block)];
      used += count > 0 ? 1 : 0;
      if (pool.references(BlockId{block}) != count) {
        return Broken("group " + std::to_string(g) + ", block " + std::to_string(block) + " has " +
                      std::to_string(pool.references(BlockId{block})) + " references and " +
                      std::to_string(count) + " mappings");
      }
    }
    if (used + pool.num_free() != pool.num_blocks()) {
      return Broken("group " + std::to_string(g) + " has " + std::to_string(used) + " used and " +
                    std::to_string(pool.num_free()) + " free blocks of " +
                    std::to_string(pool.num_blocks()));
    }
    FIRESTEEL_RETURN_IF_ERROR(CheckPool(cache, g));
  }
  return cache.prefix_index() == nullptr ? Status::Ok() : cache.prefix_index()->Check();
}

}  // namespace

Status CheckInvariants(const Scheduler& scheduler) {
  FIRESTEEL_RETURN_IF_ERROR(CheckSlots(scheduler));
  FIRESTEEL_RETURN_IF_ERROR(CheckQueue(scheduler));
  return CheckBlocks(scheduler);
}

}  // namespace firesteel
