// The numbers of one offline run: what `generate` and `eval` print as their last line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/api/engine.h"
#include "server/stream/response_stream.h"

namespace firesteel {

class RunSummary {
 public:
  // `draft_length` is K: the length of acceptance_per_position.
  explicit RunSummary(int32_t draft_length);

  void AddResult(const GenerationResult& result);
  void AddFailure() { ++failed_; }
  void AddUncompared() { ++uncompared_; }  // a result whose line says nothing about what to expect
  void AddComparison(int64_t index, bool match);

  // 1 + accepted / rounds; 1 without rounds.
  double MeanAcceptanceLength() const;
  int64_t failed() const { return failed_; }
  int64_t mismatches() const { return mismatches_; }

  // One line of JSON. `with_matches`: eval's comparison is part of it.
  std::string ToJson(const ModelInfo& info, int64_t steps, double seconds, int32_t batch,
                     bool with_matches) const;

 private:
  std::vector<int64_t> accepted_at_;  // [K] rounds that accepted draft i
  int64_t rounds_ = 0;
  int64_t accepted_ = 0;
  int64_t drafted_ = 0;
  int64_t requests_ = 0;
  int64_t failed_ = 0;
  int64_t prompt_tokens_ = 0;
  int64_t tokens_ = 0;
  int64_t matches_ = 0;
  int64_t mismatches_ = 0;
  int64_t uncompared_ = 0;
  std::optional<int64_t> first_mismatch_;
};

}  // namespace firesteel
