// Shared by the sampling tests on the demo model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/support/engine_runner.h"

namespace firesteel {

struct SamplingVariant {
  std::string drafter = "dspark";
  int32_t batch = 16;
  int32_t chunk = 1024;
  int64_t cache_tokens = 0;
  bool prefix_cache = true;
};

inline std::unique_ptr<Engine> OpenDemo(const SamplingVariant& v) {
  EngineOptions options = DemoEngineOptions(v.batch);
  options.drafter = v.drafter;
  options.prefill_chunk = v.chunk;
  options.max_batched_tokens = 1024;
  options.cache_tokens = v.cache_tokens;
  options.prefix_cache = v.prefix_cache;
  Result<std::unique_ptr<Engine>> engine = Engine::Create(options);
  FIRESTEEL_CHECK(engine.ok(), engine.status().ToString());
  return std::move(engine).value();
}

inline std::vector<RunOutput> RunOn(const SamplingVariant& v,
                                    const std::vector<RunRequest>& requests) {
  return RunRequests(*OpenDemo(v), requests);
}

// Bit for bit.
inline bool SameLogprobs(const std::vector<TokenLogprobs>& a, const std::vector<TokenLogprobs>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].token != b[i].token || a[i].logprob != b[i].logprob ||
        a[i].top.size() != b[i].top.size()) {
      return false;
    }
    for (size_t k = 0; k < a[i].top.size(); ++k) {
      if (a[i].top[k].token != b[i].top[k].token || a[i].top[k].logprob != b[i].top[k].logprob) {
        return false;
      }
    }
  }
  return true;
}

inline bool SameOutput(const RunOutput& a, const RunOutput& b) {
  return a.tokens == b.tokens && a.finish == b.finish && SameLogprobs(a.logprobs, b.logprobs) &&
         SameLogprobs(a.prompt_logprobs, b.prompt_logprobs);
}

}  // namespace firesteel
