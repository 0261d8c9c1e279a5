#include "tests/support/engine_runner.h"

#include <memory>
#include <utility>

#include "tests/support/golden.h"
#include "tests/support/test_environment.h"

namespace firesteel {

EngineOptions DemoEngineOptions(int32_t max_sequences) {
  EngineOptions options;
  options.model_dir = TestRoot() + "/configs/demo-v4";
  options.device = TestDeviceKind();
  options.max_sequences = max_sequences;
  options.max_model_len = 1024;
  return options;
}

RunRequest GreedyRequest(std::vector<int32_t> prompt, int32_t max_tokens) {
  RunRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0.0F;
  request.sampling.max_tokens = max_tokens;
  return request;
}

std::vector<RunOutput> RunRequests(Engine& engine, const std::vector<RunRequest>& requests,
                                   EngineStats* stats) {
  for (size_t i = 0; i < requests.size(); ++i) {
    Request request;
    request.id = RequestId{i + 1};
    request.prompt = requests[i].prompt;
    request.sampling = requests[i].sampling;
    request.stop_tokens = engine.info().eos_tokens;
    const Status status = engine.Submit(std::move(request));
    FIRESTEEL_CHECK(status.ok(), status.ToString());
  }
  std::vector<RunOutput> outputs(requests.size());
  std::vector<TokenEvent> events;
  size_t open = requests.size();
  while (open > 0) {
    events.clear();
    FIRESTEEL_CHECK(engine.WaitEvents(60'000'000, &events), "the engine shut down");
    for (const TokenEvent& event : events) {
      FIRESTEEL_CHECK(event.error.ok(), event.error.ToString());
      RunOutput& out = outputs[event.id.value - 1];
      out.tokens.insert(out.tokens.end(), event.tokens.begin(), event.tokens.end());
      out.logprobs.insert(out.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
      FIRESTEEL_CHECK(
          event.prompt_logprobs.empty() ||
              event.prompt_logprobs_start == static_cast<int32_t>(out.prompt_logprobs.size()) + 1,
          "prompt log-probabilities are out of order");
      out.prompt_logprobs.insert(out.prompt_logprobs.end(), event.prompt_logprobs.begin(),
                                 event.prompt_logprobs.end());
      if (event.is_round) out.accepted_per_step.push_back(event.accepted);
      if (event.finish == FinishReason::kNone) continue;
      out.finish = event.finish;
      --open;
    }
  }
  if (stats != nullptr) *stats = engine.stats();
  return outputs;
}

std::vector<RunOutput> RunRequests(const EngineOptions& options,
                                   const std::vector<RunRequest>& requests) {
  Result<std::unique_ptr<Engine>> engine = Engine::Create(options);
  FIRESTEEL_CHECK(engine.ok(), engine.status().ToString());
  return RunRequests(**engine, requests);
}

double MeanAcceptanceLength(const std::vector<RunOutput>& outputs) {
  double accepted = 0.0;
  double rounds = 0.0;
  for (const RunOutput& out : outputs) {
    for (const int32_t a : out.accepted_per_step) accepted += a;
    rounds += static_cast<double>(out.accepted_per_step.size());
  }
  return rounds == 0.0 ? 1.0 : 1.0 + accepted / rounds;
}

std::vector<GreedyCase> ReadGreedyCases(const std::string& file, int32_t max_tokens) {
  std::vector<GreedyCase> cases;
  const nlohmann::json list = ReadJson(GoldenDir("demo_v4") + "/" + file);
  for (const auto& item : list) {
    cases.push_back({item["prompt_ids"], item["output_ids"], item["accepted_per_step"],
                     item["smallest_top2_gap"], max_tokens});
  }
  FIRESTEEL_CHECK(!cases.empty(), file + " has no cases");
  return cases;
}

}  // namespace firesteel
