// Whole ranks under unusual options and with broken arithmetic, through the engine.
#include <limits>
#include <memory>
#include <string>

#include "engine/runtime/engine_factory.h"
#include "kernels/core/launch.h"
#include "kernels/ops/gather/gather.h"
#include "tests/support/catch.h"
#include "tests/support/engine_runner.h"
#include "tests/support/mutant_device.h"

namespace firesteel {
namespace {

TEST_CASE("a context cache below the model length lowers the length limit", "[exec]") {
  EngineOptions options = DemoEngineOptions(2);
  options.max_model_len = 0;
  options.cache_tokens = 1000;
  const Result<std::unique_ptr<Engine>> engine = Engine::Create(options);
  REQUIRE(engine.ok());
  CHECK((*engine)->info().max_model_len > 900);
  CHECK((*engine)->info().max_model_len <= 1024);
}

TEST_CASE("a context cache below an explicit max-model-len is refused by name", "[exec]") {
  EngineOptions options = DemoEngineOptions(2);
  options.max_model_len = 2000;
  options.cache_tokens = 1000;
  const Result<std::unique_ptr<Engine>> engine = Engine::Create(options);
  REQUIRE_FALSE(engine.ok());
  CHECK(engine.status().code() == StatusCode::kInvalidArgument);
  CHECK(engine.status().message().find("cache-tokens is 1000") != std::string::npos);
}

TEST_CASE("a temperature that would overflow the logits is greedy", "[exec]") {
  const std::vector<GreedyCase> cases = ReadGreedyCases("greedy.json", 16);
  RunRequest tiny = GreedyRequest(cases[0].prompt, 16);
  tiny.sampling.temperature = 1e-40F;
  const std::vector<RunOutput> outputs =
      RunRequests(DemoEngineOptions(2), {tiny, GreedyRequest(cases[0].prompt, 16)});
  CHECK(outputs[0].tokens == outputs[1].tokens);
}

// The rows that reach the LM head become NaN.
void GatherNaN(Stream& stream, const GatherArgs& args) {
  GatherCpu(stream, args);
  for (int32_t r = 0; r < args.rows; ++r) {
    static_cast<float*>(args.out.data)[r * args.out.stride] =
        std::numeric_limits<float>::quiet_NaN();
  }
}

TEST_CASE("logits that are not finite end the request with an error, not with token 0", "[exec]") {
  const EngineOptions options = DemoEngineOptions(2);
  Result<std::unique_ptr<Engine>> engine = CreateEngineOn(
      [&] {
        KernelTable table = CpuKernels();
        table.gather = GatherNaN;
        return CreateRankOn(CreateMutantDevice(table), options);
      },
      options);
  REQUIRE(engine.ok());
  for (uint64_t id = 1; id <= 2; ++id) {
    Request request;
    request.id = RequestId{id};
    request.prompt = {0, 2, 10, 11};
    request.sampling.temperature = id == 1 ? 0.0F : 1.0F;
    REQUIRE((*engine)->Submit(std::move(request)).ok());
  }
  std::vector<TokenEvent> events;
  while (events.size() < 2) REQUIRE((*engine)->WaitEvents(10'000'000, &events));
  for (const TokenEvent& event : events) {
    CHECK(event.finish == FinishReason::kError);
    CHECK(event.tokens.empty());
    CHECK(event.error.message().find("not finite") != std::string::npos);
  }
  CHECK((*engine)->stats().healthy);
  CHECK((*engine)->stats().blocks_free == (*engine)->stats().blocks_total);
}

}  // namespace
}  // namespace firesteel
