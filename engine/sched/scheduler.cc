#include "engine/sched/scheduler.h"

#include <string>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/math.h"

namespace firesteel {
namespace {

TokenLogprobs FromRecord(const LogprobRecord& record) {
  TokenLogprobs logprobs{
      .token = record.token, .logprob = record.logprob, .rank = record.rank, .top = {}};
  for (int32_t i = 0; i < record.num_top; ++i) {
    logprobs.top.push_back({.token = record.top_token[i], .logprob = record.top_logprob[i]});
  }
  return logprobs;
}

// Records of prefill rows that were just committed; each tells of the position behind its own. A sequence that was
// preempted runs some again, and reports none twice.
void ReportPrompt(Sequence* sequence, int32_t rows, std::span<const LogprobRecord> records,
                  TokenEvent* event) {
  event->prompt_logprobs_start = sequence->prompt_scored();
  for (int32_t i = 0; i < rows; ++i) {
    const int32_t position = sequence->computed() - rows + i + 1;
    if (position != sequence->prompt_scored() || position >= sequence->prompt_length()) continue;
    event->prompt_logprobs.push_back(FromRecord(records[static_cast<size_t>(i)]));
    sequence->ReportPromptUpTo(position + 1);
  }
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(config),
      shapes_(config.limits, config.draft_length, config.graphs),
      max_hit_records_(config.limits.max_appends - CheckedCast<int32_t>(config.least_appends())),
      cache_(config.cache, config.num_blocks, config.limits.max_sequences, config.prefix_cache),
      table_(config.limits.max_sequences),
      drafts_(config.costs.sequences.empty()
                  ? DraftPolicy::Fixed(config.draft_length)
                  : DraftPolicy::Auto(config.costs, config.window_tokens())) {
  const size_t slots = static_cast<size_t>(config.limits.max_sequences);
  planned_.reserve(slots);
  candidates_.reserve(slots);
  demands_.reserve(slots);
  grants_.reserve(slots);
}

Status Scheduler::Submit(Request request) {
  FIRESTEEL_RETURN_IF_ERROR(CheckRequest(config_, request));
  FIRESTEEL_RETURN_IF_ERROR(
      CheckQueueRoom(config_, queue_.size() + static_cast<int64_t>(table_.num_live())));
  const int32_t max_output = MaxOutputTokens(config_, request);
  queue_.PushBack(std::make_unique<Sequence>(std::move(request), next_arrival_++, max_output));
  return Status::Ok();
}

void Scheduler::Abort(RequestId id, std::vector<TokenEvent>* events) {
  Sequence* running = table_.Find(id);
  if (running == nullptr && queue_.Remove(id) == nullptr) return;
  if (running != nullptr) {
    running->Retire();
    if (running->inflight() == 0) Free(*running);
  }
  events->push_back({.id = id, .finish = FinishReason::kAborted});
}

void Scheduler::EndAll(FinishReason finish, const Status& error, std::vector<TokenEvent>* events) {
  candidates_.assign(table_.running().begin(), table_.running().end());
  for (Sequence* sequence : candidates_) {
    if (sequence->retiring()) continue;
    events->push_back({.id = sequence->id(), .finish = finish, .error = error});
    sequence->Retire();
    if (sequence->inflight() == 0) Free(*sequence);
  }
  while (!queue_.empty()) {
    events->push_back({.id = queue_.front().id(), .finish = finish, .error = error});
    queue_.PopFront();
  }
}

bool Scheduler::Plan(StepPlan* plan) {
  FIRESTEEL_CHECK(!step_in_flight(), "one step at a time");
  plan->Clear();
  Admit();
  candidates_.assign(table_.running().begin(), table_.running().end());
  if (candidates_.empty()) return false;
  ChooseDraftLength();
  demands_.clear();
  for (const Sequence* sequence : candidates_) demands_.push_back(DemandOf(*sequence));
  const BatchLimits limits{.row_budget = config_.row_budget(),
                           .prefill_chunk = config_.prefill_chunk};
  GrantRows(demands_, limits, &grants_);
  AppendList appends(plan->appends());
  int32_t later = static_cast<int32_t>(grants_.size());
  for (const RowGrant& grant : grants_) {
    --later;
    Sequence* sequence = candidates_[static_cast<size_t>(grant.demand)];
    if (!sequence->slot().valid()) continue;  // preempted a moment ago for an older one
    const int32_t wanted = FitLogitRows(*sequence, grant.rows, later, plan->header());
    const int32_t rows = MakeRoom(*sequence, wanted, &appends);
    if (rows > 0) WriteRows(sequence, rows, plan);
  }
  if (planned_.empty()) {
    // Verify blocks took all rows and then found no blocks. The oldest sequence can take those of
    // all others.
    Sequence* oldest = candidates_.front();
    GrantRows(std::span(demands_).first(1), limits, &grants_);
    const int32_t wanted = FitLogitRows(*oldest, grants_.front().rows, 0, plan->header());
    const int32_t rows = MakeRoom(*oldest, wanted, &appends);
    FIRESTEEL_CHECK(rows > 0, "the oldest sequence cannot take a step");
    WriteRows(oldest, rows, plan);
  }
  FinishPlan(appends, plan);
  return true;
}

void Scheduler::ChooseDraftLength() {
  int32_t batch = 0;
  for (const Sequence* s : candidates_) batch += s->phase() == SequencePhase::kDecode ? 1 : 0;
  step_drafts_ = drafts_.Length(Max(batch, 1));
  step_proposes_ = drafts_.ShouldPropose(Max(batch, 1));
  step_commits_ = drafts_.ShouldCommit(Max(batch, 1));
}

RowDemand Scheduler::DemandOf(const Sequence& sequence) const {
  if (sequence.phase() == SequencePhase::kDecode) {
    const int32_t length = sequence.greedy() ? step_drafts_ : config_.draft_length;
    return {.decode = true, .rows = sequence.NumDrafts(length) + 1};
  }
  return {.decode = false, .rows = sequence.known() - sequence.computed()};
}

void Scheduler::Admit() {
  while (!queue_.empty() && table_.num_free() > 0) {
    // The last known token is always run: its logits give the next one.
    const std::span<const int32_t> known = queue_.front().tokens();
    const size_t may_hit = queue_.front().sampling().NeedsEveryRow() ? 0 : known.size() - 1;
    // What a sampled sequence drafts decides which draws it uses, so it needs the draft context whole.
    const PrefixHit hit =
        cache_.Lookup(known.first(may_hit), max_hit_records_, !queue_.front().greedy());
    if (!FitsNow(queue_.front(), hit)) return;
    if (config_.prefix_cache) stats_.prefix_queries += static_cast<int64_t>(known.size());
    stats_.prefix_hits += hit.length;
    std::unique_ptr<Sequence> owned = queue_.PopFront();
    Sequence* sequence = owned.get();
    table_.Place(std::move(owned));
    const int32_t draft_begin = cache_.Attach(sequence->slot(), hit);
    sequence->StartAt(hit.length, draft_begin);
  }
}

// A newcomer is let in only if all it knows fits beside what the running ones are about to take.
// Otherwise it would start, be preempted for its blocks, and start again.
bool Scheduler::FitsNow(const Sequence& sequence, const PrefixHit& hit) const {
  const int32_t rows = config_.max_rows_per_sequence();
  const auto blocks_soon = [&](const Sequence& s, size_t group) {
    const int32_t length = Min(s.known() + config_.draft_length + 1, s.max_length());
    return Min(
        BlocksToHold(config_.cache.groups[group], config_.cache.lookahead_tokens, length, rows),
        int64_t{config_.num_blocks[group]});
  };
  for (int32_t g = 0; g < cache_.num_groups(); ++g) {
    int64_t available = cache_.pool(g).num_free();
    for (const Sequence* s : table_.running()) {
      const int64_t held = cache_.table(g, s->slot()).num_mapped();
      available -= Max(int64_t{0}, blocks_soon(*s, static_cast<size_t>(g)) - held);
    }
    const int64_t needed = blocks_soon(sequence, static_cast<size_t>(g)) - cache_.NumHeld(hit, g);
    if (available < needed) return false;
  }
  return true;
}

int32_t Scheduler::MakeRoom(const Sequence& sequence, int32_t rows, AppendList* appends) {
  const SlotId slot = sequence.slot();
  const int32_t computed = sequence.computed();
  const bool divisible = sequence.phase() == SequencePhase::kPrefill;
  const int32_t least = divisible ? 1 : rows;
  int32_t fit = cache_.RowsThatFit(slot, computed);
  while (fit < least) {
    Sequence* victim = YoungestIdleAfter(sequence);
    if (victim == nullptr) return 0;
    Preempt(victim);
    fit = cache_.RowsThatFit(slot, computed);
  }
  rows = Min(rows, fit);
  const int32_t unmaps = cache_.AppendsToReleaseOld(slot, computed);
  while (unmaps + cache_.AppendsToReserve(slot, computed + rows) > appends->room()) {
    if (!divisible || rows == 1) return 0;
    rows /= 2;
  }
  cache_.ReleaseOld(slot, computed, appends);
  cache_.Reserve(slot, computed + rows, appends);
  return rows;
}

Sequence* Scheduler::YoungestIdleAfter(const Sequence& sequence) const {
  const std::span<Sequence* const> running = table_.running();
  for (size_t i = running.size(); i-- > 0 && running[i]->arrival() > sequence.arrival();) {
    if (running[i]->inflight() == 0) return running[i];
  }
  return nullptr;
}

void Scheduler::Preempt(Sequence* sequence) {
  cache_.ReleaseAll(sequence->slot());
  std::unique_ptr<Sequence> owned = table_.Remove(*sequence);
  owned->Preempt();
  queue_.PushFront(std::move(owned));
  ++stats_.preemptions;
}

int32_t Scheduler::FitLogitRows(const Sequence& sequence, int32_t rows, int32_t later,
                                const PlanHeader& header) const {
  if (sequence.phase() == SequencePhase::kDecode || !sequence.ScoresPrompt()) return rows;
  return Max(1, Min(rows, config_.limits.max_logit_rows - header.num_logit_rows - later));
}

void Scheduler::StartSlot(const Sequence& sequence, StepPlan* plan) const {
  PlanHeader& header = plan->header();
  PlanNewSlot& start = plan->new_slots()[static_cast<size_t>(header.num_new_slots++)];
  start = {.slot = sequence.slot().value,
           .length = sequence.computed(),
           .rules = -1,
           .sampling = sequence.DeviceSampling()};
  if (!start.sampling.has_tables()) return;
  start.rules = header.num_rules++;
  sequence.WriteRules(&plan->rules()[static_cast<size_t>(start.rules)]);
}

void Scheduler::WriteRows(Sequence* sequence, int32_t rows, StepPlan* plan) {
  PlanHeader& header = plan->header();
  const SlotId slot = sequence->slot();
  if (!sequence->announced()) StartSlot(*sequence, plan);
  const bool decode = sequence->phase() == SequencePhase::kDecode;
  PlannedRows planned{.sequence = sequence,
                      .rows = rows,
                      .num_drafts = decode ? rows - 1 : -1,
                      .emits = decode || sequence->computed() + rows == sequence->known(),
                      .propose = false};
  planned.propose = planned.emits && sequence->ShouldPropose(config_.draft_length) &&
                    sequence->HasDraftWindow(config_.window_tokens()) &&
                    (step_proposes_ || !sequence->greedy());
  // Prompts are cheap to commit many rows at a time, and what they leave in the prefix cache serves everyone.
  step_commits_ = step_commits_ || !decode || !sequence->greedy();
  const bool scores = !decode && sequence->ScoresPrompt();
  planned.num_logit_rows = decode || scores ? rows : (planned.emits ? 1 : 0);
  if (planned.num_logit_rows > 0) planned.first_logit_row = header.num_logit_rows;
  const std::span<const int32_t> known = sequence->tokens();
  plan->sequences()[static_cast<size_t>(header.num_sequences++)] = {
      .slot = slot.value,
      .first_row = header.num_rows,
      .num_rows = rows,
      .start = sequence->computed(),
      .num_drafts = planned.num_drafts,
      .first_logit_row = planned.first_logit_row,
      .num_logit_rows = planned.num_logit_rows,
      .propose = planned.propose ? 1 : 0,
      .next_token =
          scores && !planned.emits ? known[static_cast<size_t>(sequence->computed() + rows)] : -1};
  if (scores || (planned.emits && sequence->sampling().logprobs >= 0)) header.wants_logprobs = 1;
  if (!decode) {
    for (int32_t i = 0; i < rows; ++i) {
      plan->tokens()[static_cast<size_t>(header.num_rows + i)] =
          known[static_cast<size_t>(sequence->computed() + i)];
    }
  }
  header.num_rows += rows;
  header.num_logit_rows += planned.num_logit_rows;
  sequence->OnPlanned();
  planned_.push_back(planned);
}

void Scheduler::FinishPlan(const AppendList& appends, StepPlan* plan) {
  PlanHeader& header = plan->header();
  header.step = next_step_++;
  header.num_appends = appends.count();
  header.skips_draft_commit = step_commits_ ? 0 : 1;
  bool decode_only = true;
  for (const PlannedRows& planned : planned_) decode_only = decode_only && planned.num_drafts >= 0;
  plan->set_shape(shapes_.ShapeFor({.sequences = header.num_sequences,
                                    .rows = header.num_rows,
                                    .logit_rows = header.num_logit_rows,
                                    .decode_only = decode_only}));
}

Status Scheduler::OnResult(std::span<const SequenceResult> results,
                           std::span<const LogprobRecord> logprobs,
                           std::vector<TokenEvent>* events) {
  FIRESTEEL_CHECK(step_in_flight(), "no step is in flight");
  if (results.size() < planned_.size()) {
    return Internal("step " + std::to_string(next_step_ - 1) + " has " +
                    std::to_string(results.size()) + " results, needs " +
                    std::to_string(planned_.size()));
  }
  for (size_t i = 0; i < planned_.size(); ++i) {
    FIRESTEEL_RETURN_IF_ERROR(CheckResult(planned_[i], results[i]));
  }
  ++stats_.steps;
  for (size_t i = 0; i < planned_.size(); ++i) Apply(planned_[i], results[i], logprobs, events);
  planned_.clear();
  return Status::Ok();
}

void Scheduler::AbandonStep() {
  for (const PlannedRows& planned : planned_) {
    planned.sequence->OnStepDone();
    if (planned.sequence->retiring() && planned.sequence->inflight() == 0) Free(*planned.sequence);
  }
  planned_.clear();
}

Status Scheduler::CheckResult(const PlannedRows& planned, const SequenceResult& result) const {
  const int32_t slot = planned.sequence->slot().value;
  const bool decode = planned.num_drafts >= 0;
  const int32_t max_accepted = decode ? planned.num_drafts : 0;
  const int32_t num_tokens = planned.emits ? result.accepted + 1 : 0;
  if (result.slot == slot && result.not_finite != 0 && planned.emits) return Status::Ok();
  if (result.slot == slot && result.accepted >= 0 && result.accepted <= max_accepted &&
      result.num_tokens == num_tokens) {
    return Status::Ok();
  }
  return Internal("step " + std::to_string(next_step_ - 1) + ": slot " + std::to_string(slot) +
                  " with " + std::to_string(max_accepted) + " drafts got a result for slot " +
                  std::to_string(result.slot) + " with " + std::to_string(result.accepted) +
                  " accepted and " + std::to_string(result.num_tokens) + " tokens");
}

void Scheduler::FailSequence(Sequence* sequence, std::vector<TokenEvent>* events) {
  if (!sequence->retiring()) {
    TokenEvent event;
    event.id = sequence->id();
    event.finish = FinishReason::kError;
    event.error = Internal("the model's logits after " + std::to_string(sequence->known()) +
                           " tokens are not finite; the checkpoint or its numerics are broken");
    events->push_back(std::move(event));
    sequence->Retire();
  }
  if (sequence->inflight() == 0) Free(*sequence);
}

void Scheduler::Apply(const PlannedRows& planned, const SequenceResult& result,
                      std::span<const LogprobRecord> logprobs, std::vector<TokenEvent>* events) {
  Sequence& sequence = *planned.sequence;
  const bool decode = planned.num_drafts >= 0;
  sequence.OnStepDone();
  if (result.not_finite != 0) return FailSequence(&sequence, events);
  if (decode) {
    if (!step_commits_) sequence.SkipDraftRows(result.accepted + 1);
    sequence.CommitDecode(result.accepted);
  } else {
    stats_.prompt_tokens += sequence.CommitPrefill(planned.rows);
  }
  cache_.Commit(sequence.slot(), sequence.committed_tokens(), sequence.draft_gap());
  if (sequence.retiring()) {  // its last event is out already; the tokens came too late
    if (sequence.inflight() == 0) Free(sequence);
    return;
  }
  TokenEvent event;
  event.id = sequence.id();
  if (!decode && sequence.ScoresPrompt()) {
    ReportPrompt(&sequence, planned.rows,
                 logprobs.subspan(static_cast<size_t>(planned.first_logit_row)), &event);
  }
  if (!planned.emits) {
    if (!event.prompt_logprobs.empty()) events->push_back(std::move(event));
    return;
  }
  const std::span<const int32_t> tokens(result.tokens, static_cast<size_t>(result.num_tokens));
  const Sequence::Emission emission = sequence.Emit(tokens, planned.propose);
  // The drafts are known tokens now.
  cache_.Commit(sequence.slot(), sequence.committed_tokens(), sequence.draft_gap());
  event.tokens.assign(tokens.begin(), tokens.begin() + emission.num_tokens);
  if (sequence.sampling().logprobs >= 0) {
    const int32_t last = planned.first_logit_row + planned.num_logit_rows;
    const int32_t first = decode ? planned.first_logit_row : last - 1;
    for (int32_t i = 0; i < emission.num_tokens; ++i) {
      event.logprobs.push_back(FromRecord(logprobs[static_cast<size_t>(first + i)]));
    }
  }
  event.is_round = decode;
  event.drafted = decode ? planned.num_drafts : 0;
  event.accepted = Min(result.accepted, emission.num_tokens);
  event.finish = emission.finish;
  stats_.generation_tokens += emission.num_tokens;
  if (event.drafted > 0) {
    CountRound(event.drafted, event.accepted);
    if (sequence.greedy()) drafts_.Observe(planned.num_drafts, result.accepted);
  }
  events->push_back(std::move(event));
  if (emission.finish != FinishReason::kNone) {
    sequence.Retire();
    if (sequence.inflight() == 0) Free(sequence);
  }
}

void Scheduler::CountRound(int32_t drafted, int32_t accepted) {
  ++stats_.rounds;
  stats_.drafted_tokens += drafted;
  stats_.accepted_tokens += accepted;
  for (int32_t i = 0; i < accepted; ++i) ++stats_.accepted_at_position[static_cast<size_t>(i)];
}

void Scheduler::Free(const Sequence& sequence) {
  cache_.ReleaseAll(sequence.slot());
  table_.Remove(sequence);
}

EngineStats Scheduler::stats() const {
  EngineStats stats = stats_;
  stats.requests_running = table_.num_live();
  stats.requests_waiting = queue_.size();
  for (int32_t g = 0; g < cache_.num_groups(); ++g) {
    stats.blocks_total += cache_.pool(g).num_blocks();
    stats.blocks_free += cache_.pool(g).num_free();
  }
  return stats;
}

}  // namespace firesteel
