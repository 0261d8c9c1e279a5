// ScriptedRank: a RankExecutor whose "model" is a hash, for tests of the scheduler and the runtime.
//
// The next token is a hash of the request's seed and all tokens before it, read back through the block tables, so a
// wrong table, a wrong position or a missing row changes the output. Drafts are right with a seeded probability.
// Every plan is checked against the contract of engine/plan; a violation is an Internal error that names it. The
// lookahead positions are overwritten with poison. Rows also record a hash of all tokens up to their own, so a block
// that is shared with the wrong prefix is found when it is read; a block that is shared may not be written.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/api/request.h"
#include "engine/api/token_event.h"
#include "engine/exec/rank.h"
#include "engine/plan/step_plan.h"
#include "engine/plan/step_result.h"
#include "kernels/core/status.h"

namespace firesteel {

// What a request must get, computed by plain one-token-at-a-time decoding.
struct ToyOutput {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kNone;
};
ToyOutput ToyContinuation(const Request& request, int32_t vocab_size, int32_t max_model_len);

// Two cache groups: "context" (keeps all) and "window" (keeps 5 positions), K = 3, pools large enough for all slots.
RankInfo ToyRankInfo();

struct ScriptedRankOptions {
  RankInfo info = ToyRankInfo();  // needs at least one group that retains everything
  double draft_accuracy = 0.7;    // probability that one draft equals the model's token
  uint64_t draft_seed = 1;
  // Called before each step; an error is returned by RunStep as a device fault would be.
  std::function<Status(const StepPlan&)> before_step;
};

class ScriptedRank final : public RankExecutor {
 public:
  explicit ScriptedRank(ScriptedRankOptions options);

  const RankInfo& info() const override { return options_.info; }
  Status RunStep(const StepPlan& plan, std::span<SequenceResult> results,
                 std::span<LogprobRecord> logprobs) override;

 private:
  struct Cell {
    int32_t position = -1;
    int32_t token = -1;
    uint64_t prefix = 0;  // of the tokens up to this one, whatever the seed
  };
  struct Group {
    std::vector<Cell> cells;                   // [blocks * block_tokens]
    std::vector<std::set<int32_t>> holders;    // [blocks] slots that map it
    std::vector<std::vector<int32_t>> tables;  // [slots][entries] block or -1
  };
  struct Slot {
    bool live = false;  // started, and none of its blocks was given away since
    bool ran = false;   // rows of it were run
    int32_t length = 0;
    bool has_anchor = false;
    int32_t anchor = -1;
    std::vector<int32_t> drafts;
    uint64_t seed = 0;
  };

  Status CheckShape(const StepPlan& plan) const;
  Status ApplyNewSlots(const StepPlan& plan);
  Status ApplyAppends(const StepPlan& plan);
  Status ApplyAppend(const PlanAppend& append);
  Status Unmap(const PlanAppend& append, const std::string& where);
  Status CheckSequence(const PlanSequence& sequence) const;
  Status CheckMapped(const PlanSequence& sequence) const;
  Status ReadContext(int32_t slot, uint64_t* state, uint64_t* prefix) const;
  Status WriteCell(int32_t slot, const Cell& cell);
  Status RunSequence(const StepPlan& plan, const PlanSequence& sequence, SequenceResult* result);
  // Records that name the token of each logit row; the log-probability is minus its successor.
  Status ScoreRows(const StepPlan& plan, const PlanSequence& sequence, const SequenceResult& result,
                   std::span<LogprobRecord> logprobs) const;
  void Propose(Slot* slot, uint64_t state) const;
  Cell& CellAt(Group& group, size_t index, int32_t slot, int32_t position) const;
  int32_t BlockTokens(size_t group) const { return options_.info.cache.groups[group].block_tokens; }

  ScriptedRankOptions options_;
  size_t full_group_ = 0;  // the first group that retains everything
  std::vector<Group> groups_;
  std::vector<Slot> slots_;
};

}  // namespace firesteel
