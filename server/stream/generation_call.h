// A validated generation, whichever front end it came from: HTTP routes, gRPC and the offline commands end here.
// Pure functions, callable from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/api/sampling_params.h"
#include "kernels/core/status.h"

namespace firesteel {

inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 1024;   // of one stop string
inline constexpr size_t kMaxStopTokenIds = 32;  // with a model's end tokens below the engine's 64
inline constexpr double kSmallestTopP = 1e-6;   // 0 would keep no token
inline constexpr double kLargestTemperature = 2.0;
inline constexpr double kLargestPenalty = 2.0;  // presence and frequency; the smallest is -2
inline constexpr double kSmallestRepetitionPenalty = 1e-3;
inline constexpr double kLargestRepetitionPenalty = 1e3;
inline constexpr double kLargestBias = 100.0;  // the smallest is -100
inline constexpr int32_t kMostLogprobs = 20;   // alternatives of one token
inline constexpr int32_t kMaxChoices = 128;    // of one prompt

struct GenerationCall {
  std::vector<int32_t> prompt_ids;
  std::vector<std::string> stop;  // each non-empty, at most kMaxStopStrings
  std::vector<int32_t>
      stop_token_ids;  // end the text beside the model's end tokens, with ignore_eos alone
  SamplingParams sampling;
};

// A seed for a call whose client gave none.
uint64_t DrawSeed();

// Limits max_tokens, where 0 means as many as possible, to what the model's length leaves behind the prompt.
// InvalidArgument, about the field `name`, when the prompt is empty or that is nothing.
Status LimitToModel(const std::string& name, int32_t max_model_len, GenerationCall* call);

// InvalidArgument, which begins with "min_tokens", when the limit that LimitToModel settled is below it.
Status CheckMinTokens(const SamplingParams& sampling);

// `count` calls for one prompt, which differ by their seeds: choice i has seed + i.
std::vector<GenerationCall> MakeChoices(GenerationCall call, int32_t count);

}  // namespace firesteel
