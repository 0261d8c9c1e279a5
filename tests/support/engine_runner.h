// Runs token-level requests through a whole engine and collects what came out. For golden, lossless and mutation tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/api/engine.h"

namespace firesteel {

struct RunRequest {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
};

struct RunOutput {
  std::vector<int32_t> tokens;
  std::vector<int32_t> accepted_per_step;
  std::vector<TokenLogprobs> logprobs;
  std::vector<TokenLogprobs> prompt_logprobs;  // from position 1 on
  FinishReason finish = FinishReason::kNone;
};

// Options for configs/demo-v4 on the device of this binary, with room for `max_sequences` requests of up to 1,024 positions.
EngineOptions DemoEngineOptions(int32_t max_sequences);

// A greedy request with the checkpoint's end token.
RunRequest GreedyRequest(std::vector<int32_t> prompt, int32_t max_tokens);

// Submits everything at once (the engine queues what has no slot) and waits for all. Aborts the test program on errors.
// `stats` may be null.
std::vector<RunOutput> RunRequests(Engine& engine, const std::vector<RunRequest>& requests,
                                   EngineStats* stats = nullptr);
std::vector<RunOutput> RunRequests(const EngineOptions& options,
                                   const std::vector<RunRequest>& requests);

// 1 + accepted / rounds over all outputs.
double MeanAcceptanceLength(const std::vector<RunOutput>& outputs);

struct GreedyCase {
  std::vector<int32_t> prompt;
  std::vector<int32_t> output;
  std::vector<int32_t> accepted_per_step;
  double smallest_gap = 0.0;
  int32_t max_tokens = 0;
};
// greedy.json (64 prompts, 160 tokens) or greedy_long.json (16 prompts, 96 tokens).
std::vector<GreedyCase> ReadGreedyCases(const std::string& file, int32_t max_tokens);

}  // namespace firesteel
