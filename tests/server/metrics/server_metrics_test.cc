// The metrics page, line by line.
#include "server/metrics/server_metrics.h"

#include <string>

#include "tests/support/catch.h"
#include "tests/support/scripted_engine.h"

namespace firesteel {
namespace {

const std::string kLabels = R"({model_name="toy",engine="0")";

bool HasLine(const std::string& page, const std::string& line) {
  return ("\n" + page).find("\n" + line + "\n") != std::string::npos;
}

std::string PageOf(const ServerMetrics& metrics, const EngineStats& stats = {}) {
  return metrics.Page(stats, ScriptedModelInfo());
}

// The value of a sample without further labels.
std::string Value(const std::string& page, const std::string& name) {
  for (const char* labels :
       {R"({model_name="toy",engine="0"} )", R"({engine="0",model_name="toy"} )"}) {
    const std::string start = "\n" + name + labels;
    const size_t at = page.find(start);
    if (at == std::string::npos) continue;
    const size_t from = at + start.size();
    return page.substr(from, page.find('\n', from) - from);
  }
  return "absent";
}

TEST_CASE("the engine's counters appear under vLLM's names") {
  EngineStats stats;
  stats.rounds = 7;
  stats.drafted_tokens = 35;
  stats.accepted_tokens = 9;
  stats.accepted_at_position = {6, 3};
  stats.prompt_tokens = 11;
  stats.generation_tokens = 16;
  stats.preemptions = 2;
  stats.prefix_queries = 40;
  stats.prefix_hits = 32;
  stats.requests_running = 3;
  stats.requests_waiting = 4;
  stats.steps = 21;
  const std::string page = PageOf(ServerMetrics("toy"), stats);
  CHECK(Value(page, "vllm:spec_decode_num_drafts_total") == "7");
  CHECK(Value(page, "vllm:spec_decode_num_draft_tokens_total") == "35");
  CHECK(Value(page, "vllm:spec_decode_num_accepted_tokens_total") == "9");
  CHECK(Value(page, "vllm:prompt_tokens_total") == "11");
  CHECK(Value(page, "vllm:generation_tokens_total") == "16");
  CHECK(Value(page, "vllm:num_preemptions_total") == "2");
  CHECK(Value(page, "vllm:prefix_cache_queries_total") == "40");
  CHECK(Value(page, "vllm:prefix_cache_hits_total") == "32");
  CHECK(Value(page, "vllm:num_requests_running") == "3");
  CHECK(Value(page, "vllm:num_requests_waiting") == "4");
  CHECK(Value(page, "firesteel_engine_steps_total") == "21");
}

TEST_CASE("there is one acceptance counter for each draft position of the model") {
  EngineStats stats;
  stats.accepted_at_position = {6, 3};
  const std::string page = PageOf(ServerMetrics("toy"), stats);
  const std::string name = "vllm:spec_decode_num_accepted_tokens_per_pos_total" + kLabels;
  CHECK(HasLine(page, name + R"(,position="0"} 6)"));
  CHECK(HasLine(page, name + R"(,position="1"} 3)"));
  CHECK(HasLine(page, name + R"(,position="4"} 0)"));
  CHECK(page.find(R"(position="5")") == std::string::npos);
}

TEST_CASE("cache usage is the share of blocks that are not free") {
  EngineStats stats;
  stats.blocks_total = 80;
  stats.blocks_free = 20;
  const std::string page = PageOf(ServerMetrics("toy"), stats);
  CHECK(Value(page, "vllm:kv_cache_usage_perc") == "0.75");
  CHECK(HasLine(
      page, "vllm:cache_config_info" + kLabels + R"(,cache_dtype="fp32",num_gpu_blocks="80"} 1)"));
  CHECK(Value(PageOf(ServerMetrics("toy")), "vllm:kv_cache_usage_perc") == "0");
}

TEST_CASE("tokens that come together share the time since those before them") {
  ServerMetrics metrics("toy");
  metrics.OnTokens(0.75, 3);
  const std::string page = PageOf(metrics);
  CHECK(Value(page, "vllm:inter_token_latency_seconds_count") == "3");
  CHECK(Value(page, "vllm:inter_token_latency_seconds_sum") == "0.75");
}

TEST_CASE("a finished request is in every request histogram, an aborted one only in the counter") {
  ServerMetrics metrics("toy");
  GenerationTimes times;
  times.first_token_s = 1.0;
  times.last_token_s = 3.0;
  times.end_s = 3.5;
  times.prompt_tokens = 20;
  times.output_tokens = 5;
  metrics.OnFinish(FinishReason::kLength, times);
  metrics.OnFinish(FinishReason::kAborted, times);
  const std::string page = PageOf(metrics);
  CHECK(Value(page, "vllm:e2e_request_latency_seconds_count") == "1");
  CHECK(Value(page, "vllm:e2e_request_latency_seconds_sum") == "3.5");
  CHECK(Value(page, "vllm:request_time_per_output_token_seconds_sum") == "0.5");
  CHECK(Value(page, "vllm:request_prompt_tokens_sum") == "20");
  CHECK(Value(page, "vllm:request_generation_tokens_sum") == "5");
  CHECK(page.find("finished_reason=\"abort\"") != std::string::npos);
}

TEST_CASE("a request of one token has no time per further token") {
  ServerMetrics metrics("toy");
  GenerationTimes times;
  times.output_tokens = 1;
  metrics.OnFinish(FinishReason::kStop, times);
  CHECK(Value(PageOf(metrics), "vllm:request_time_per_output_token_seconds_count") == "0");
}

TEST_CASE("a model name with quotes does not break the page") {
  const std::string page = ServerMetrics("a\"b\\c\nd").Page({}, ScriptedModelInfo());
  CHECK(page.find(R"(model_name="a\"b\\c\nd")") != std::string::npos);
}

}  // namespace
}  // namespace firesteel
