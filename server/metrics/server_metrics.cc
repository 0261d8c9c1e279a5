#include "server/metrics/server_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <iterator>
#include <utility>

#include "server/metrics/engine_families.h"

namespace firesteel {

namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;

// Upper bounds in seconds. The first and third are vLLM's; the second reaches lower, because an accepted block makes the
// time of one token a fraction of a step's.
Buckets FirstTokenBuckets() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
          1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
}
Buckets TokenBuckets() {
  return {.0005, .001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3,
          .4,    .5,   .75,   1,    2.5, 5,    7.5, 10,   20, 40,  80};
}
Buckets WholeRequestBuckets() {
  return {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
          30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
}
// Tokens: 1, 2, 5, 10, ... up to a million.
Buckets CountBuckets() {
  Buckets buckets;
  for (double decade = 1; decade < 1e6; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) buckets.push_back(decade * step);
  }
  buckets.push_back(1e6);
  return buckets;
}

const char* ReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAborted: return "abort";
    default: return "error";
  }
}

const char* RefusalName(StatusCode code) {
  switch (code) {
    case StatusCode::kResourceExhausted: return "queue_full";
    case StatusCode::kUnavailable: return "unavailable";
    default: return "invalid";
  }
}

}  // namespace

struct ServerMetrics::Families {
  explicit Families(const std::string& model_name)
      : labels{{"model_name", model_name}, {"engine", "0"}},
        first_token(AddHistogram("vllm:time_to_first_token_seconds",
                                 "From the request to its first token.", FirstTokenBuckets())),
        between_tokens(AddHistogram(
            "vllm:inter_token_latency_seconds",
            "Time per output token after the first: tokens that come together share the time since "
            "those before them equally.",
            TokenBuckets())),
        per_token(AddHistogram("vllm:request_time_per_output_token_seconds",
                               "A finished request's mean time per output token after the first.",
                               TokenBuckets())),
        whole(AddHistogram("vllm:e2e_request_latency_seconds",
                           "From a request to its end, for those that finished.",
                           WholeRequestBuckets())),
        prompt(AddHistogram("vllm:request_prompt_tokens", "Prompt length of finished requests.",
                            CountBuckets())),
        output(AddHistogram("vllm:request_generation_tokens", "Output length of finished requests.",
                            CountBuckets())),
        finished(AddCounter("vllm:request_success_total",
                            "Requests that ended, by reason; abort and error are no success.")),
        refused(AddCounter("vllm:admission_rejections_total",
                           "Requests the engine did not take, by reason.")),
        http(prometheus::BuildCounter()
                 .Name("http_requests_total")
                 .Help("HTTP requests answered, by path, method and status code.")
                 .Register(registry)) {
    // All series exist from the start, so that rates have a first value.
    for (const char* reason : {"stop", "length", "abort", "error"}) {
      finished.Add({{"finished_reason", reason}});
    }
    for (const char* reason : {"queue_full", "unavailable", "invalid"}) {
      refused.Add({{"reason", reason}});
    }
  }

  Histogram& AddHistogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Labels(labels).Register(registry).Add(
        {}, buckets);
  }
  Family<Counter>& AddCounter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Labels(labels).Register(registry);
  }

  prometheus::Registry registry;  // before the references into it
  const prometheus::Labels labels;
  Histogram& first_token;
  Histogram& between_tokens;
  Histogram& per_token;
  Histogram& whole;
  Histogram& prompt;
  Histogram& output;
  Family<Counter>& finished;
  Family<Counter>& refused;
  Family<Counter>& http;
};

ServerMetrics::ServerMetrics(const std::string& model_name)
    : model_name_(model_name), families_(std::make_unique<Families>(model_name)) {}

ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::OnRefused(StatusCode reason) {
  families_->refused.Add({{"reason", RefusalName(reason)}}).Increment();
}

void ServerMetrics::OnFirstToken(double seconds) { families_->first_token.Observe(seconds); }

void ServerMetrics::OnTokens(double seconds, int64_t tokens) {
  const double each = seconds / static_cast<double>(tokens);
  for (int64_t i = 0; i < tokens; ++i) families_->between_tokens.Observe(each);
}

void ServerMetrics::OnFinish(FinishReason reason, const GenerationTimes& times) {
  families_->finished.Add({{"finished_reason", ReasonName(reason)}}).Increment();
  if (reason != FinishReason::kStop && reason != FinishReason::kLength) return;
  families_->whole.Observe(times.end_s);
  families_->prompt.Observe(static_cast<double>(times.prompt_tokens));
  families_->output.Observe(static_cast<double>(times.output_tokens));
  if (times.output_tokens < 2) return;
  families_->per_token.Observe((times.last_token_s - times.first_token_s) /
                               static_cast<double>(times.output_tokens - 1));
}

void ServerMetrics::OnHttpAnswer(const std::string& handler, const std::string& method,
                                 int status) {
  families_->http
      .Add({{"handler", handler}, {"method", method}, {"status", std::to_string(status)}})
      .Increment();
}

std::string ServerMetrics::Page(const EngineStats& stats, const ModelInfo& info) const {
  std::vector<prometheus::MetricFamily> all = EngineFamilies(model_name_, stats, info);
  std::vector<prometheus::MetricFamily> own = families_->registry.Collect();
  all.insert(all.end(), std::make_move_iterator(own.begin()), std::make_move_iterator(own.end()));
  const prometheus::TextSerializer serializer;
  return static_cast<const prometheus::Serializer&>(serializer).Serialize(all);
}

void ServerMetrics::AddRoute(const Engine* engine, Router* router) {
  router->Add("GET", "/metrics",
              [this, engine](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
                HttpResponse response;
                response.content_type = "text/plain; version=0.0.4; charset=utf-8";
                response.body = Page(engine->stats(), engine->info());
                writer->Send(std::move(response));
              });
}

}  // namespace firesteel
