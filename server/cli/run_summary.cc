#include "server/cli/run_summary.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace firesteel {

RunSummary::RunSummary(int32_t draft_length)
    : accepted_at_(static_cast<size_t>(std::max(draft_length, 0)), 0) {}

void RunSummary::AddResult(const GenerationResult& result) {
  ++requests_;
  prompt_tokens_ += result.prompt_tokens;
  tokens_ += static_cast<int64_t>(result.output_ids.size());
  drafted_ += result.drafted;
  rounds_ += static_cast<int64_t>(result.accepted_per_step.size());
  for (const int32_t accepted : result.accepted_per_step) {
    accepted_ += accepted;
    const size_t positions = std::min(static_cast<size_t>(accepted), accepted_at_.size());
    for (size_t i = 0; i < positions; ++i) ++accepted_at_[i];
  }
}

void RunSummary::AddComparison(int64_t index, bool match) {
  if (match) {
    ++matches_;
    return;
  }
  ++mismatches_;
  if (!first_mismatch_.has_value() || index < *first_mismatch_) first_mismatch_ = index;
}

double RunSummary::MeanAcceptanceLength() const {
  if (rounds_ == 0) return 1.0;
  return 1.0 + static_cast<double>(accepted_) / static_cast<double>(rounds_);
}

std::string RunSummary::ToJson(const ModelInfo& info, int64_t steps, double seconds, int32_t batch,
                               bool with_matches) const {
  std::vector<double> per_position;
  for (const int64_t count : accepted_at_) {
    per_position.push_back(
        rounds_ == 0 ? 0.0 : static_cast<double>(count) / static_cast<double>(rounds_));
  }
  nlohmann::ordered_json summary = {
      {"mean_acceptance_length", MeanAcceptanceLength()},
      {"acceptance_per_position", per_position},
      {"rounds", rounds_},
      {"drafted_tokens", drafted_},
      {"accepted_tokens", accepted_},
      {"requests", requests_},
      {"failed", failed_},
      {"prompt_tokens", prompt_tokens_},
      {"tokens", tokens_},
      {"steps", steps},
      {"seconds", seconds},
      {"tokens_per_second", seconds > 0 ? static_cast<double>(tokens_) / seconds : 0.0},
      {"device", info.device},
      {"tp", info.tp},
      {"dep", info.dep},
      {"threads", info.threads},
      {"drafter", info.drafter},
      {"draft_length", info.draft_length},
      {"verification", info.verification},
      {"kv_cache_dtype", info.cache_dtype},
      {"activations", info.activations},
      {"batch", batch}};
  if (with_matches) {
    summary["matches"] = matches_;
    summary["mismatches"] = mismatches_;
    summary["without_expectation"] = uncompared_;
    summary["first_mismatch"] =
        first_mismatch_.has_value() ? nlohmann::ordered_json(*first_mismatch_) : nullptr;
  }
  return summary.dump();
}

}  // namespace firesteel
