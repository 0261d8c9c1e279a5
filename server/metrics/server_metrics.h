// The page behind GET /metrics, in Prometheus' text format, with vLLM's metric names where a metric means the same.
//
// Counters and gauges of the engine are read from its stats when the page is asked for; histograms are fed by the
// output thread, HTTP counts by whoever answers. Threads: any, all at once.
#pragma once

#include <memory>
#include <string>

#include "engine/api/engine.h"
#include "server/http/router.h"
#include "server/stream/generation_observer.h"

namespace firesteel {

class ServerMetrics : public GenerationObserver {
 public:
  // `model_name` becomes a label of every metric.
  explicit ServerMetrics(const std::string& model_name);
  ~ServerMetrics() override;

  void OnRefused(StatusCode reason) override;
  void OnFirstToken(double seconds) override;
  void OnTokens(double seconds, int64_t tokens) override;
  void OnFinish(FinishReason reason, const GenerationTimes& times) override;

  // One HTTP answer; see Router::SetObserver.
  void OnHttpAnswer(const std::string& handler, const std::string& method, int status);

  std::string Page(const EngineStats& stats, const ModelInfo& info) const;

  // Answers GET /metrics. `engine` outlives the router.
  void AddRoute(const Engine* engine, Router* router);

 private:
  struct Families;
  const std::string model_name_;
  const std::unique_ptr<Families> families_;
};

}  // namespace firesteel
