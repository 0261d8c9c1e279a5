// What a request may ask for, at both ends of every range.
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/api/sampling_params.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

struct Case {
  std::string field;
  std::function<void(SamplingParams*)> change;
};

std::string Message(const Case& c) {
  SamplingParams params;
  c.change(&params);
  const Status status = params.Validate();
  return status.ok() ? "" : status.message();
}

TEST_CASE("sampling options inside their ranges are taken", "[params]") {
  const std::vector<Case> cases = {
      {"presence_penalty", [](SamplingParams* p) { p->presence_penalty = -2.0F; }},
      {"frequency_penalty", [](SamplingParams* p) { p->frequency_penalty = 2.0F; }},
      {"repetition_penalty", [](SamplingParams* p) { p->repetition_penalty = 0.01F; }},
      {"min_p", [](SamplingParams* p) { p->min_p = 1.0F; }},
      {"top_k", [](SamplingParams* p) { p->top_k = 1 << 30; }},
      {"min_tokens", [](SamplingParams* p) { p->min_tokens = p->max_tokens; }},
      {"logit_bias",
       [](SamplingParams* p) {
         p->logit_bias = {{1, -100.0F}, {2, 100.0F}};
       }},
      {"logit_bias",
       [](SamplingParams* p) {
         for (int32_t t = 0; t < 300; ++t) p->logit_bias[t] = 1.0F;
       }},
      {"bad_words", [](SamplingParams* p) { p->bad_words = {std::vector<int32_t>(32, 1)}; }},
      {"logprobs", [](SamplingParams* p) { p->logprobs = 20; }},
      {"prompt_logprobs", [](SamplingParams* p) { p->prompt_logprobs = 0; }}};
  for (const Case& c : cases) {
    INFO(c.field);
    CHECK(Message(c).empty());
  }
}

TEST_CASE("a sampling option outside its range is refused by name", "[params]") {
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<Case> cases = {
      {"presence_penalty", [](SamplingParams* p) { p->presence_penalty = 2.01F; }},
      {"presence_penalty", [](SamplingParams* p) { p->presence_penalty = kNan; }},
      {"frequency_penalty", [](SamplingParams* p) { p->frequency_penalty = -2.01F; }},
      {"repetition_penalty", [](SamplingParams* p) { p->repetition_penalty = 0.0F; }},
      {"repetition_penalty", [](SamplingParams* p) { p->repetition_penalty = kInfinity; }},
      {"min_p", [](SamplingParams* p) { p->min_p = 1.01F; }},
      {"min_p", [](SamplingParams* p) { p->min_p = -0.01F; }},
      {"top_k", [](SamplingParams* p) { p->top_k = -1; }},
      {"min_tokens", [](SamplingParams* p) { p->min_tokens = p->max_tokens + 1; }},
      {"min_tokens", [](SamplingParams* p) { p->min_tokens = -1; }},
      {"logit_bias",
       [](SamplingParams* p) {
         p->logit_bias = {{1, 100.5F}};
       }},
      {"logit_bias",
       [](SamplingParams* p) {
         p->logit_bias = {{1, kNan}};
       }},
      {"logit_bias",
       [](SamplingParams* p) {
         for (int32_t t = 0; t < 301; ++t) p->logit_bias[t] = 1.0F;
       }},
      {"bad_words", [](SamplingParams* p) { p->bad_words = {{}}; }},
      {"bad_words", [](SamplingParams* p) { p->bad_words = {std::vector<int32_t>(33, 1)}; }},
      {"bad_words", [](SamplingParams* p) { p->bad_words.assign(65, {1}); }},
      {"bad_words", [](SamplingParams* p) { p->bad_words.assign(9, std::vector<int32_t>(30, 1)); }},
      {"logprobs", [](SamplingParams* p) { p->logprobs = 21; }},
      {"logprobs", [](SamplingParams* p) { p->logprobs = -2; }},
      {"prompt_logprobs", [](SamplingParams* p) { p->prompt_logprobs = 21; }}};
  for (const Case& c : cases) {
    INFO(c.field);
    CHECK(Message(c).find(c.field) != std::string::npos);
  }
}

}  // namespace
}  // namespace firesteel
