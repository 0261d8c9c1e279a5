// Scheduler: decides what each step runs and turns step results into token events.
//
// Scheduler thread only; no locks, no clocks, and it never sees an address. It meets the ranks in engine/plan: Plan
// fills a StepPlan, OnResult takes the records that the step produced. There is no prefill or decode phase of the
// engine: every sequence's computed count catches up with its known tokens, and one step may mix both kinds.
//
// Contract:
//   1. every submitted request gets exactly one event with finish != kNone, and it is its last one.
//   2. slot and blocks of a sequence are freed only when it is retiring and has no step in flight (a preempted one has
//      no step in flight either).
//   3. a sequence may wait for blocks that others hold, but the oldest one can always run.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/api/engine_stats.h"
#include "engine/api/request.h"
#include "engine/api/token_event.h"
#include "engine/plan/shape_table.h"
#include "engine/plan/step_plan.h"
#include "engine/plan/step_result.h"
#include "engine/sched/admission.h"
#include "engine/sched/batch_policy.h"
#include "engine/sched/cache_manager.h"
#include "engine/sched/draft_policy.h"
#include "engine/sched/scheduler_config.h"
#include "engine/sched/sequence_table.h"
#include "kernels/core/status.h"

namespace firesteel {

class Scheduler {
 public:
  // REQUIRES: config.Validate() is OK.
  explicit Scheduler(const SchedulerConfig& config);

  // Queues a request, or says why it cannot be taken (CheckRequest, CheckQueueRoom). Nothing is held after an error.
  Status Submit(Request request);

  // Ends a request: its kAborted event is appended at once; a step in flight is waited out before its blocks are freed.
  // Unknown ids are ignored.
  void Abort(RequestId id, std::vector<TokenEvent>* events);

  // Ends every live request with `finish`. `error` is OK except for kError.
  void EndAll(FinishReason finish, const Status& error, std::vector<TokenEvent>* events);

  // Fills the next step. False: there is nothing to run. REQUIRES: !step_in_flight().
  bool Plan(StepPlan* plan);

  // Applies the result of the planned step; `results` has one record per planned sequence, in plan order. An error
  // means that the ranks broke the contract; nothing can be trusted afterwards. REQUIRES: step_in_flight().
  // `logprobs` has one per logit row; it is read only if the plan wanted them.
  Status OnResult(std::span<const SequenceResult> results, std::span<const LogprobRecord> logprobs,
                  std::vector<TokenEvent>* events);

  // The step in flight will never have a result (the ranks failed). Its sequences stay live until EndAll.
  void AbandonStep();

  bool step_in_flight() const { return !planned_.empty(); }
  EngineStats stats() const;

  const SchedulerConfig& config() const { return config_; }
  const SequenceTable& table() const { return table_; }
  const AdmissionQueue& queue() const { return queue_; }
  const CacheManager& cache() const { return cache_; }

 private:
  // What the step in flight runs of one sequence.
  struct PlannedRows {
    Sequence* sequence;
    int32_t rows;
    int32_t num_drafts;  // -1: prefill
    bool emits;
    bool propose;
    int32_t first_logit_row = -1;
    int32_t num_logit_rows = 0;
  };

  void ChooseDraftLength();
  RowDemand DemandOf(const Sequence& sequence) const;
  void Admit();
  bool FitsNow(const Sequence& sequence, const PrefixHit& hit) const;
  // Reserves blocks for up to `rows` more rows, preempting younger sequences if needed. Returns the rows that may run;
  // with 0, no record was written.
  int32_t MakeRoom(const Sequence& sequence, int32_t rows, AppendList* appends);
  Sequence* YoungestIdleAfter(const Sequence& sequence) const;
  void Preempt(Sequence* sequence);
  // Fewer rows where they need logit rows each and `later` further sequences of the step need one.
  int32_t FitLogitRows(const Sequence& sequence, int32_t rows, int32_t later,
                       const PlanHeader& header) const;
  void StartSlot(const Sequence& sequence, StepPlan* plan) const;
  void WriteRows(Sequence* sequence, int32_t rows, StepPlan* plan);
  void FinishPlan(const AppendList& appends, StepPlan* plan);
  Status CheckResult(const PlannedRows& planned, const SequenceResult& result) const;
  void Apply(const PlannedRows& planned, const SequenceResult& result,
             std::span<const LogprobRecord> logprobs, std::vector<TokenEvent>* events);
  // Ends a sequence whose logits cannot be used; the engine and its other sequences go on.
  void FailSequence(Sequence* sequence, std::vector<TokenEvent>* events);
  void CountRound(int32_t drafted, int32_t accepted);
  void Free(const Sequence& sequence);

  // Constant after construction.
  SchedulerConfig config_;
  ShapeTable shapes_;
  int32_t
      max_hit_records_;  // append records that a prefix hit may take, so that its first row still has room

  CacheManager cache_;
  SequenceTable table_;
  AdmissionQueue queue_;
  uint64_t next_arrival_ = 0;
  int64_t next_step_ = 0;
  EngineStats stats_;

  // Draft length of the greedy sequences in the step being planned. Sampled ones always draft K: with a seed, which
  // positions were drafted decides which draws are used, so their length must not depend on the neighbours.
  DraftPolicy drafts_;
  int32_t step_drafts_ = 0;
  bool step_proposes_ = false;
  bool step_commits_ = true;  // the rows of the step planned last enter the draft context

  // Reused by every step.
  std::vector<PlannedRows> planned_;
  std::vector<Sequence*> candidates_;
  std::vector<RowDemand> demands_;
  std::vector<RowGrant> grants_;
};

}  // namespace firesteel
