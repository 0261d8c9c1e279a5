#include "engine/exec/rank_memory.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "kernels/core/math.h"

namespace firesteel {
namespace {

// A device hands out memory in pages; small buffers share one.
constexpr int64_t kDevicePageBytes = int64_t{2} << 20;
constexpr int64_t kSmallBufferBytes = int64_t{1} << 20;
constexpr int64_t kSmallAlignment = 512;

int64_t Footprint(const DeviceArena& arena) {
  int64_t bytes = 0;
  for (const DeviceArena::Buffer& buffer : arena.buffers()) {
    bytes += RoundUp(buffer.bytes,
                     buffer.bytes < kSmallBufferBytes ? kSmallAlignment : kDevicePageBytes);
  }
  return bytes;
}

// Bytes that a plan takes, found by carving it without a device.
int64_t BytesOf(const MemoryPlan& plan, Device& device, TargetModel& target, Drafter& drafter) {
  DeviceArena counted(device, DeviceArena::Use::kCount);
  BindMemory(counted, plan, !device.reads_host_memory(), target, drafter);
  return Footprint(counted);
}

std::string Gigabytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB",
                static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30));
  return text;
}

}  // namespace

std::unique_ptr<StepBuffers> BindMemory(DeviceArena& arena, const MemoryPlan& plan,
                                        bool verify_scratch, TargetModel& target,
                                        Drafter& drafter) {
  target.Bind(arena, plan.step, plan.caches);
  drafter.Bind(arena, plan.step, plan.caches);
  StepBufferSizes sizes;
  sizes.plan = plan.plan;
  sizes.step = plan.step;
  sizes.draft_length = drafter.spec().draft_length;
  sizes.vocab = target.spec().vocab;
  sizes.positions = plan.positions;
  sizes.window_tokens = target.spec().window_tokens;
  sizes.window_group = kWindowGroup;
  sizes.context_group = kContextGroup;
  sizes.compress_ratios = target.spec().compress_ratios;
  sizes.list_all_entries = target.spec().list_all_entries;
  sizes.verify_scratch = verify_scratch;
  for (const CacheGroupSpec& group : plan.cache.groups) {
    sizes.block_tokens.push_back(group.block_tokens);
  }
  return std::make_unique<StepBuffers>(arena, sizes);
}

Result<MemoryPlan> PlanRankMemory(const EngineOptions& options, Device& device, TargetModel& target,
                                  Drafter& drafter) {
  const DeviceMemory memory = device.memory();
  if (memory.total_bytes == 0) return PlanMemory(options, target, drafter);
  const int64_t used = memory.total_bytes - memory.free_bytes;
  const auto allowed =
      static_cast<int64_t>(options.memory_fraction * static_cast<double>(memory.total_bytes));
  if (options.cache_tokens > 0) {
    FIRESTEEL_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(options, target, drafter));
    const int64_t needed = BytesOf(plan, device, target, drafter);
    if (needed <= memory.free_bytes) return plan;
    return ResourceExhausted(device.Describe() + " has " + Gigabytes(memory.free_bytes) +
                             " free beside the weights, cache-tokens " +
                             std::to_string(options.cache_tokens) + " and step buffers need " +
                             Gigabytes(needed) +
                             ": lower cache-tokens, max-sequences or max-batched-tokens");
  }
  // What is not the capacity of the caches does not grow with it.
  FIRESTEEL_ASSIGN_OR_RETURN(const MemoryPlan least,
                             PlanMemory(options, target, drafter, {.bytes = 0}));
  const int64_t capacity = least.num_blocks[kContextGroup] * least.bytes_per_context_block;
  const int64_t base = BytesOf(least, device, target, drafter) - capacity;
  const int64_t left = allowed - used - base;
  if (left < least.bytes_per_context_block) {
    return ResourceExhausted(
        device.Describe() + " has " + Gigabytes(memory.total_bytes) +
        ", of which memory-fraction " + std::to_string(options.memory_fraction) + " allows " +
        Gigabytes(allowed) + "; weights and other programs hold " + Gigabytes(used) +
        ", step buffers need " + Gigabytes(std::max<int64_t>(base, 0)) +
        " and nothing is left for caches: lower max-sequences or max-batched-tokens, or raise "
        "memory-fraction");
  }
  return PlanMemory(options, target, drafter, {.bytes = left, .device = true});
}

}  // namespace firesteel
