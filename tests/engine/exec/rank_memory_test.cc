// Sizes of caches on devices with memory of their own: here a CPU that claims to have some.
#include "engine/exec/rank_memory.h"

#include <memory>
#include <string>

#include "engine/exec/rank_state.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/support/catch.h"
#include "tests/support/engine_runner.h"

namespace firesteel {
namespace {

constexpr int64_t kMegabyte = int64_t{1} << 20;

class LimitedDevice final : public Device {
 public:
  LimitedDevice(int64_t total, int64_t used, int64_t* allocated)
      : total_(total), used_(used), allocated_(allocated) {}

  const KernelTable& kernels() const override { return inner_->kernels(); }
  Stream& stream() override { return inner_->stream(); }
  void* Allocate(int64_t bytes) override {
    if (used_ + *allocated_ + bytes > total_) return nullptr;
    *allocated_ += bytes;
    return inner_->Allocate(bytes);
  }
  void Free(void* pointer) override { inner_->Free(pointer); }
  bool reads_host_memory() const override { return true; }
  DeviceMemory memory() const override { return {total_ - used_ - *allocated_, total_}; }
  std::string Describe() const override { return "limited"; }

 private:
  std::unique_ptr<Device> inner_ = CreateCpuDevice(1);
  int64_t total_;
  int64_t used_;  // by other programs
  int64_t* allocated_;
};

struct Outcome {
  Status status;
  RankInfo info;
  int64_t allocated = 0;
};

Outcome CreateOn(const EngineOptions& options, int64_t total, int64_t used = 0) {
  Outcome outcome;
  Result<std::unique_ptr<RankState>> state = RankState::CreateOn(
      std::make_unique<LimitedDevice>(total, used, &outcome.allocated), options);
  outcome.status = state.status();
  if (state.ok()) outcome.info = (*state)->info();
  return outcome;
}

EngineOptions SmallOptions() {
  EngineOptions options = DemoEngineOptions(2);
  options.max_model_len = 0;
  options.graphs = false;
  return options;
}

TEST_CASE("a roomy device gets every slot at full length and as much for prefixes", "[exec]") {
  EngineOptions options = SmallOptions();
  const int64_t roomy = int64_t{8} << 30;
  const Outcome shared = CreateOn(options, roomy);
  REQUIRE(shared.status.ok());
  options.prefix_cache = false;
  const Outcome unshared = CreateOn(options, roomy);
  REQUIRE(unshared.status.ok());
  CHECK(shared.info.num_blocks[kContextGroup] == 2 * unshared.info.num_blocks[kContextGroup]);
  CHECK(unshared.info.num_blocks[kContextGroup] * kContextBlockTokens >=
        2 * unshared.info.model.max_model_len);
}

TEST_CASE("automatic caches keep within their fraction of a device's memory", "[exec]") {
  const EngineOptions options = SmallOptions();
  int64_t before = 0;
  for (const int64_t total : {180 * kMegabyte, 220 * kMegabyte, 260 * kMegabyte}) {
    INFO("total " << total);
    const Outcome outcome = CreateOn(options, total, 20 * kMegabyte);
    REQUIRE(outcome.status.ok());
    const auto allowed = static_cast<int64_t>(0.9 * static_cast<double>(total));
    CHECK(outcome.allocated + 20 * kMegabyte <= allowed);
    // Up to a page is set aside for the end of each large buffer, and a last block may not fit.
    CHECK(outcome.allocated + 20 * kMegabyte > allowed - 40 * kMegabyte);
    CHECK(outcome.info.num_blocks[kContextGroup] > before);
    before = outcome.info.num_blocks[kContextGroup];
  }
}

TEST_CASE("a device without room for caches is refused with what takes the memory", "[exec]") {
  const Outcome outcome = CreateOn(SmallOptions(), 40 * kMegabyte);
  REQUIRE_FALSE(outcome.status.ok());
  CHECK(outcome.status.code() == StatusCode::kResourceExhausted);
  CHECK(outcome.status.message().find("memory-fraction") != std::string::npos);
  CHECK(outcome.status.message().find("lower max-sequences") != std::string::npos);
}

TEST_CASE("a cache capacity beyond the device's memory is refused before it is reserved",
          "[exec]") {
  EngineOptions options = SmallOptions();
  options.cache_tokens = 1 << 20;
  const Outcome outcome = CreateOn(options, int64_t{1} << 30);
  REQUIRE_FALSE(outcome.status.ok());
  CHECK(outcome.status.message().find("cache-tokens 1048576") != std::string::npos);
  CHECK(outcome.allocated < 100 * kMegabyte);
}

TEST_CASE("a length that the device's room cannot hold is refused by name", "[exec]") {
  EngineOptions options = SmallOptions();
  // The smallest device that serves at all shortens the length.
  int64_t total = 40 * kMegabyte;
  Outcome least = CreateOn(options, total);
  while (!least.status.ok()) least = CreateOn(options, total += 4 * kMegabyte);
  CHECK(least.info.model.max_model_len < 4096);
  options.max_model_len = 4096;
  const Outcome outcome = CreateOn(options, total);
  REQUIRE_FALSE(outcome.status.ok());
  CHECK(outcome.status.message().find("max-model-len 4096") != std::string::npos);
}

}  // namespace
}  // namespace firesteel
