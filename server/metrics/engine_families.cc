#include "server/metrics/engine_families.h"

#include <utility>

namespace firesteel {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

class FamilyList {
 public:
  explicit FamilyList(const std::string& model_name)
      : labels_{{"model_name", model_name}, {"engine", "0"}} {}

  void Counter(const std::string& name, const std::string& help, int64_t value) {
    Open(name, help, MetricType::Counter);
    Add(static_cast<double>(value), {});
  }
  void Gauge(const std::string& name, const std::string& help, double value) {
    Open(name, help, MetricType::Gauge);
    Add(value, {});
  }

  void Open(const std::string& name, const std::string& help, MetricType type) {
    families_.push_back({name, help, type, {}});
  }
  // One sample of the family that was opened last.
  void Add(double value, Labels more) {
    ClientMetric metric;
    metric.label = labels_;
    for (ClientMetric::Label& label : more) metric.label.push_back(std::move(label));
    metric.counter.value = value;
    metric.gauge.value = value;
    families_.back().metric.push_back(std::move(metric));
  }

  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  const Labels labels_;
  std::vector<MetricFamily> families_;
};

void AddSpeculation(const EngineStats& stats, const ModelInfo& info, FamilyList* list) {
  list->Counter("vllm:spec_decode_num_drafts_total",
                "Speculative rounds that verified at least one draft.", stats.rounds);
  list->Counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens verified.",
                stats.drafted_tokens);
  list->Counter("vllm:spec_decode_num_accepted_tokens_total",
                "Draft tokens accepted and emitted, cut at the end of a text.",
                stats.accepted_tokens);
  list->Open("vllm:spec_decode_num_accepted_tokens_per_pos_total",
             "Rounds that accepted the draft at this position, counted from 0.",
             MetricType::Counter);
  for (int32_t position = 0; position < info.draft_length; ++position) {
    list->Add(static_cast<double>(stats.accepted_at_position[static_cast<size_t>(position)]),
              {{"position", std::to_string(position)}});
  }
}

void AddRequests(const EngineStats& stats, FamilyList* list) {
  list->Counter("vllm:prompt_tokens_total",
                "Prompt tokens computed; those found in the prefix cache do not count.",
                stats.prompt_tokens);
  list->Counter("vllm:generation_tokens_total", "Tokens emitted to requests.",
                stats.generation_tokens);
  list->Counter("vllm:num_preemptions_total",
                "Running requests that gave their cache blocks to others and start again later.",
                stats.preemptions);
  list->Counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
                stats.prefix_queries);
  list->Counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
                stats.prefix_hits);
  list->Gauge("vllm:num_requests_running", "Requests that hold a slot.",
              static_cast<double>(stats.requests_running));
  list->Gauge("vllm:num_requests_waiting", "Requests that wait for a slot.",
              static_cast<double>(stats.requests_waiting));
}

}  // namespace

std::vector<MetricFamily> EngineFamilies(const std::string& model_name, const EngineStats& stats,
                                         const ModelInfo& info) {
  FamilyList list(model_name);
  AddSpeculation(stats, info, &list);
  AddRequests(stats, &list);
  const auto total = static_cast<double>(stats.blocks_total);
  const auto free = static_cast<double>(stats.blocks_free);
  list.Gauge("vllm:kv_cache_usage_perc",
             "Share of the cache blocks that running requests hold, 0 to 1.",
             total > 0 ? 1.0 - free / total : 0.0);
  list.Open("vllm:cache_config_info", "How the cache is set up; the value is always 1.",
            MetricType::Gauge);
  list.Add(1.0, {{"cache_dtype", info.cache_dtype},
                 {"num_gpu_blocks", std::to_string(stats.blocks_total)}});
  list.Gauge("firesteel_cache_blocks", "Cache blocks of all groups.", total);
  list.Gauge("firesteel_cache_blocks_free",
             "Cache blocks that no request holds; cached prefixes are among them.", free);
  list.Counter("firesteel_engine_steps_total",
               "Steps the device completed. It grows as long as a healthy engine has work.",
               stats.steps);
  list.Gauge("firesteel_engine_healthy", "1, or 0 after the engine has failed.",
             stats.healthy ? 1.0 : 0.0);
  return list.Take();
}

}  // namespace firesteel
