#include "tests/support/scripted_rank.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/math.h"

namespace firesteel {
namespace {

constexpr int32_t kPoison = -777;
constexpr uint64_t kEmptyPrefix = 1;

uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

uint64_t StartState(uint64_t seed) { return Mix(seed); }
uint64_t PushToken(uint64_t state, int32_t token) {
  return Mix(state ^ Mix(static_cast<uint64_t>(token) + 1));
}
int32_t NextToken(uint64_t state, int32_t vocab_size) {
  return static_cast<int32_t>(Mix(state) % static_cast<uint64_t>(vocab_size));
}

std::string Str(int64_t value) { return std::to_string(value); }

}  // namespace

ToyOutput ToyContinuation(const Request& request, int32_t vocab_size, int32_t max_model_len) {
  ToyOutput output;
  uint64_t state = StartState(request.sampling.seed);
  for (const int32_t token : request.prompt) state = PushToken(state, token);
  int32_t length = static_cast<int32_t>(request.prompt.size());
  while (output.finish == FinishReason::kNone) {
    const int32_t token = NextToken(state, vocab_size);
    state = PushToken(state, token);
    output.tokens.push_back(token);
    ++length;
    const auto& stops = request.stop_tokens;
    if (!request.sampling.ignore_eos &&
        std::find(stops.begin(), stops.end(), token) != stops.end()) {
      output.finish = FinishReason::kStop;
    } else if (static_cast<int32_t>(output.tokens.size()) == request.sampling.max_tokens ||
               length == max_model_len) {
      output.finish = FinishReason::kLength;
    }
  }
  return output;
}

RankInfo ToyRankInfo() {
  RankInfo info;
  info.model.architecture = "Toy";
  info.model.vocab_size = 50;
  info.model.max_model_len = 64;
  info.model.draft_length = 3;
  info.cache.groups = {
      {.name = "context", .block_tokens = 4, .bytes_per_block = 32, .retained_tokens = 0},
      {.name = "window", .block_tokens = 2, .bytes_per_block = 16, .retained_tokens = 5}};
  info.cache.lookahead_tokens = 4;
  info.num_blocks = {80, 80};
  info.limits = {.max_sequences = 4, .max_rows = 48, .max_appends = 256, .max_logit_rows = 20};
  info.draft_length = 3;
  return info;
}

ScriptedRank::ScriptedRank(ScriptedRankOptions options) : options_(std::move(options)) {
  const RankInfo& info = options_.info;
  const auto num_slots = static_cast<size_t>(info.limits.max_sequences);
  slots_.resize(num_slots);
  bool found = false;
  for (size_t g = 0; g < info.cache.groups.size(); ++g) {
    const CacheGroupSpec& spec = info.cache.groups[g];
    if (spec.retained_tokens == 0 && !found) {
      full_group_ = g;
      found = true;
    }
    const auto blocks = static_cast<size_t>(info.num_blocks[g]);
    const auto entries = static_cast<size_t>(
        CeilDiv(info.model.max_model_len + info.cache.lookahead_tokens, spec.block_tokens));
    Group group;
    group.cells.resize(blocks * static_cast<size_t>(spec.block_tokens));
    group.holders.resize(blocks);
    group.tables.assign(num_slots, std::vector<int32_t>(entries, -1));
    groups_.push_back(std::move(group));
  }
  FIRESTEEL_CHECK(found, "the toy model reads its context from a group that retains everything");
}

Status ScriptedRank::RunStep(const StepPlan& plan, std::span<SequenceResult> results,
                             std::span<LogprobRecord> logprobs) {
  if (options_.before_step) FIRESTEEL_RETURN_IF_ERROR(options_.before_step(plan));
  FIRESTEEL_RETURN_IF_ERROR(plan.Validate());
  FIRESTEEL_RETURN_IF_ERROR(CheckShape(plan));
  FIRESTEEL_RETURN_IF_ERROR(ApplyNewSlots(plan));
  FIRESTEEL_RETURN_IF_ERROR(ApplyAppends(plan));
  for (size_t i = 0; i < static_cast<size_t>(plan.header().num_sequences); ++i) {
    FIRESTEEL_RETURN_IF_ERROR(CheckSequence(plan.sequences()[i]));
    FIRESTEEL_RETURN_IF_ERROR(CheckMapped(plan.sequences()[i]));
  }
  for (size_t i = 0; i < static_cast<size_t>(plan.header().num_sequences); ++i) {
    FIRESTEEL_RETURN_IF_ERROR(RunSequence(plan, plan.sequences()[i], &results[i]));
    if (plan.header().wants_logprobs == 0) continue;
    FIRESTEEL_RETURN_IF_ERROR(ScoreRows(plan, plan.sequences()[i], results[i], logprobs));
  }
  return Status::Ok();
}

Status ScriptedRank::CheckShape(const StepPlan& plan) const {
  const StepShape& shape = plan.shape();
  const PlanLimits& limits = options_.info.limits;
  const int32_t block = options_.info.draft_length + 1;
  if (plan.header().num_sequences == 0) return Internal("a step runs no sequence");
  if (shape.sequences > limits.max_sequences || shape.rows > limits.max_rows ||
      plan.header().num_logit_rows > limits.max_logit_rows || shape.logit_rows > shape.rows) {
    return Internal("shape " + Str(shape.sequences) + "/" + Str(shape.rows) + "/" +
                    Str(shape.logit_rows) + " exceeds the limits");
  }
  if (!shape.captured) return Status::Ok();
  if (shape.rows != shape.sequences * block || shape.logit_rows != shape.rows) {
    return Internal("a captured step has " + Str(shape.rows) + " rows for " + Str(shape.sequences) +
                    " sequences");
  }
  for (size_t i = 0; i < static_cast<size_t>(plan.header().num_sequences); ++i) {
    if (plan.sequences()[i].num_drafts < 0) return Internal("a captured step has a prefill");
  }
  return Status::Ok();
}

Status ScriptedRank::ApplyNewSlots(const StepPlan& plan) {
  for (size_t i = 0; i < static_cast<size_t>(plan.header().num_new_slots); ++i) {
    const PlanNewSlot& start = plan.new_slots()[i];
    if (start.slot < 0 || start.slot >= options_.info.limits.max_sequences) {
      return Internal("new slot " + Str(start.slot) + " is out of range");
    }
    if (start.length < 0 || start.length >= options_.info.model.max_model_len) {
      return Internal("new slot starts at " + Str(start.length));
    }
    for (Group& group : groups_) {
      for (int32_t& block : group.tables[static_cast<size_t>(start.slot)]) {
        if (block >= 0) group.holders[static_cast<size_t>(block)].erase(start.slot);
        block = -1;
      }
    }
    Slot& slot = slots_[static_cast<size_t>(start.slot)];
    slot = Slot{};
    slot.live = true;
    slot.length = start.length;
    slot.seed = start.sampling.seed;
  }
  return Status::Ok();
}

Status ScriptedRank::ApplyAppends(const StepPlan& plan) {
  std::set<std::tuple<int32_t, int32_t, int32_t>> written;
  for (size_t i = 0; i < static_cast<size_t>(plan.header().num_appends); ++i) {
    const PlanAppend& append = plan.appends()[i];
    if (!written.insert({append.group, append.slot, append.index}).second) {
      return Internal("group " + Str(append.group) + ", slot " + Str(append.slot) + ", entry " +
                      Str(append.index) + " is written twice in one step");
    }
    FIRESTEEL_RETURN_IF_ERROR(ApplyAppend(append));
  }
  return Status::Ok();
}

Status ScriptedRank::ApplyAppend(const PlanAppend& append) {
  const std::string where = "append to group " + Str(append.group) + ", slot " + Str(append.slot) +
                            ", entry " + Str(append.index) + ": ";
  if (append.group < 0 || append.group >= static_cast<int32_t>(groups_.size()) || append.slot < 0 ||
      append.slot >= static_cast<int32_t>(slots_.size())) {
    return Internal(where + "no such table");
  }
  Group& group = groups_[static_cast<size_t>(append.group)];
  std::vector<int32_t>& table = group.tables[static_cast<size_t>(append.slot)];
  if (append.index < 0 || append.index >= static_cast<int32_t>(table.size())) {
    return Internal(where + "the table has " + Str(static_cast<int64_t>(table.size())) +
                    " entries");
  }
  int32_t& entry = table[static_cast<size_t>(append.index)];
  if (append.block == -1) return Unmap(append, where);
  if (entry >= 0) return Internal(where + "is mapped already");
  if (append.block < 0 || append.block >= static_cast<int32_t>(group.holders.size())) {
    return Internal(where + "block " + Str(append.block) + " is out of range");
  }
  std::set<int32_t>& holders = group.holders[static_cast<size_t>(append.block)];
  if (holders.contains(append.slot)) return Internal(where + "maps a block twice");
  const Slot& slot = slots_[static_cast<size_t>(append.slot)];
  const int32_t begin = append.index * BlockTokens(static_cast<size_t>(append.group));
  if (begin < slot.length) {
    // A shared one: its positions are valid before the slot's first row. What it holds is checked when it is read.
    if (slot.ran || begin + BlockTokens(static_cast<size_t>(append.group)) > slot.length) {
      return Internal(where + "covers positions before " + Str(slot.length));
    }
  } else {
    // Those that held it have ended or were preempted. If one has not, its next rows are refused.
    for (const int32_t other : holders) slots_[static_cast<size_t>(other)].live = false;
    holders.clear();
  }
  holders.insert(append.slot);
  entry = append.block;
  return Status::Ok();
}

Status ScriptedRank::Unmap(const PlanAppend& append, const std::string& where) {
  Group& group = groups_[static_cast<size_t>(append.group)];
  int32_t& entry =
      group.tables[static_cast<size_t>(append.slot)][static_cast<size_t>(append.index)];
  if (entry < 0) return Internal(where + "unmaps what is not mapped");
  group.holders[static_cast<size_t>(entry)].erase(append.slot);
  entry = -1;
  return Status::Ok();
}

Status ScriptedRank::CheckSequence(const PlanSequence& sequence) const {
  const Slot& slot = slots_[static_cast<size_t>(sequence.slot)];
  const std::string where = "slot " + Str(sequence.slot) + ": ";
  if (!slot.live) return Internal(where + "runs without a start, or after it lost a block");
  if (sequence.num_drafts < 0) {
    if (slot.has_anchor) return Internal(where + "prefills with an anchor pending");
    if (sequence.start != slot.length) {
      return Internal(where + "prefills from " + Str(sequence.start) + ", is at " +
                      Str(slot.length));
    }
    if (sequence.num_logit_rows > 1 && sequence.num_logit_rows != sequence.num_rows) {
      return Internal(where + "a prefill needs logits of one row or of all");
    }
  } else {
    if (!slot.has_anchor) return Internal(where + "decodes without an anchor");
    if (sequence.num_drafts > static_cast<int32_t>(slot.drafts.size())) {
      return Internal(where + "verifies " + Str(sequence.num_drafts) + " drafts of " +
                      Str(static_cast<int64_t>(slot.drafts.size())));
    }
    if (sequence.num_logit_rows != sequence.num_rows) {
      return Internal(where + "a verify block needs a logit row per row");
    }
  }
  if (slot.length + sequence.num_rows > options_.info.model.max_model_len) {
    return Internal(where + "runs position " + Str(slot.length + sequence.num_rows - 1));
  }
  if (sequence.propose != 0 && (sequence.num_logit_rows == 0 || options_.info.draft_length == 0)) {
    return Internal(where + "proposes without a reason");
  }
  return Status::Ok();
}

Status ScriptedRank::CheckMapped(const PlanSequence& sequence) const {
  const Slot& slot = slots_[static_cast<size_t>(sequence.slot)];
  const int32_t end = slot.length + sequence.num_rows + options_.info.cache.lookahead_tokens;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int32_t retained = options_.info.cache.groups[g].retained_tokens;
    const int32_t begin = retained == 0 ? 0 : Max(0, slot.length - retained);
    for (int32_t position = begin; position < end; ++position) {
      const int32_t block = groups_[g].tables[static_cast<size_t>(sequence.slot)]
                                             [static_cast<size_t>(position / BlockTokens(g))];
      if (block < 0 || !groups_[g].holders[static_cast<size_t>(block)].contains(sequence.slot)) {
        return Internal("slot " + Str(sequence.slot) + ", group " +
                        options_.info.cache.groups[g].name + ": position " + Str(position) +
                        " of [" + Str(begin) + ", " + Str(end) + ") has no block");
      }
    }
  }
  return Status::Ok();
}

ScriptedRank::Cell& ScriptedRank::CellAt(Group& group, size_t index, int32_t slot,
                                         int32_t position) const {
  const int32_t block_tokens = BlockTokens(index);
  const int32_t block =
      group.tables[static_cast<size_t>(slot)][static_cast<size_t>(position / block_tokens)];
  return group.cells[static_cast<size_t>(block) * static_cast<size_t>(block_tokens) +
                     static_cast<size_t>(position % block_tokens)];
}

Status ScriptedRank::WriteCell(int32_t slot, const Cell& cell) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int32_t entry = cell.position / BlockTokens(g);
    const int32_t block = groups_[g].tables[static_cast<size_t>(slot)][static_cast<size_t>(entry)];
    if (groups_[g].holders[static_cast<size_t>(block)].size() != 1) {
      return Internal("slot " + Str(slot) + " writes position " + Str(cell.position) +
                      " into block " + Str(block) + ", which another slot shares");
    }
    CellAt(groups_[g], g, slot, cell.position) = cell;
  }
  return Status::Ok();
}

Status ScriptedRank::ReadContext(int32_t slot_index, uint64_t* state, uint64_t* prefix) const {
  const Slot& slot = slots_[static_cast<size_t>(slot_index)];
  *state = StartState(slot.seed);
  *prefix = kEmptyPrefix;
  for (int32_t position = 0; position < slot.length; ++position) {
    auto& self = const_cast<ScriptedRank&>(*this);
    const Cell& cell = CellAt(self.groups_[full_group_], full_group_, slot_index, position);
    *prefix = PushToken(*prefix, cell.token);
    for (size_t g = 0; g < groups_.size(); ++g) {
      const int32_t retained = options_.info.cache.groups[g].retained_tokens;
      if (retained > 0 && position < slot.length - retained) continue;
      const Cell& other = CellAt(self.groups_[g], g, slot_index, position);
      if (other.position != position || other.token != cell.token || other.token == kPoison ||
          other.prefix != *prefix) {
        return Internal("slot " + Str(slot_index) + ", group " + Str(static_cast<int64_t>(g)) +
                        ": position " + Str(position) + " holds a row of another one");
      }
    }
    *state = PushToken(*state, cell.token);
  }
  return Status::Ok();
}

Status ScriptedRank::RunSequence(const StepPlan& plan, const PlanSequence& sequence,
                                 SequenceResult* result) {
  Slot& slot = slots_[static_cast<size_t>(sequence.slot)];
  const int32_t vocab_size = options_.info.model.vocab_size;
  const bool decode = sequence.num_drafts >= 0;
  uint64_t state = 0;
  uint64_t prefix = 0;
  FIRESTEEL_RETURN_IF_ERROR(ReadContext(sequence.slot, &state, &prefix));
  slot.ran = true;
  std::vector<int32_t> rows(static_cast<size_t>(sequence.num_rows));
  for (int32_t i = 0; i < sequence.num_rows; ++i) {
    int32_t token = plan.tokens()[static_cast<size_t>(sequence.first_row + i)];
    if (decode) token = i == 0 ? slot.anchor : slot.drafts[static_cast<size_t>(i - 1)];
    if (token < 0 || token >= vocab_size) return Internal("row token " + Str(token));
    rows[static_cast<size_t>(i)] = token;
    prefix = PushToken(prefix, token);
    FIRESTEEL_RETURN_IF_ERROR(WriteCell(sequence.slot, {slot.length + i, token, prefix}));
  }
  for (int32_t i = 0; i < options_.info.cache.lookahead_tokens; ++i) {
    FIRESTEEL_RETURN_IF_ERROR(
        WriteCell(sequence.slot, {slot.length + sequence.num_rows + i, kPoison, 0}));
  }
  *result = SequenceResult{};
  result->slot = sequence.slot;
  result->drafted = Max(0, sequence.num_drafts);
  if (!decode) {
    for (const int32_t token : rows) state = PushToken(state, token);
    slot.length += sequence.num_rows;
    if (sequence.num_logit_rows == 0 || sequence.next_token >= 0) return Status::Ok();
    result->tokens[result->num_tokens++] = NextToken(state, vocab_size);
  } else {
    for (size_t i = 0; i < rows.size(); ++i) {
      state = PushToken(state, rows[i]);
      const int32_t next = NextToken(state, vocab_size);
      result->tokens[result->num_tokens++] = next;
      if (i + 1 == rows.size() || rows[i + 1] != next) break;
    }
    result->accepted = result->num_tokens - 1;
    slot.length += result->num_tokens;
  }
  slot.has_anchor = true;
  slot.anchor = result->tokens[result->num_tokens - 1];
  slot.drafts.clear();
  if (sequence.propose != 0) Propose(&slot, PushToken(state, slot.anchor));
  return Status::Ok();
}

Status ScriptedRank::ScoreRows(const StepPlan& plan, const PlanSequence& sequence,
                               const SequenceResult& result,
                               std::span<LogprobRecord> logprobs) const {
  const int32_t rows = sequence.num_logit_rows;
  const bool decode = sequence.num_drafts >= 0;
  for (int32_t i = 0; i < rows; ++i) {
    const int32_t behind = sequence.first_row + sequence.num_rows - rows + i + 1;
    int32_t token;
    if (decode) {
      if (i == result.num_tokens) break;
      token = result.tokens[i];
    } else if (i + 1 < rows) {
      token = plan.tokens()[static_cast<size_t>(behind)];
    } else {
      token = sequence.next_token >= 0 ? sequence.next_token : result.tokens[0];
    }
    const auto at = static_cast<size_t>(sequence.first_logit_row + i);
    if (at >= logprobs.size())
      return Internal("there is no room for logit row " + Str(sequence.first_logit_row + i));
    logprobs[at] = LogprobRecord{};
    logprobs[at].token = token;
    logprobs[at].logprob = -1.0F - static_cast<float>(token);
  }
  return Status::Ok();
}

void ScriptedRank::Propose(Slot* slot, uint64_t state) const {
  const int32_t vocab_size = options_.info.model.vocab_size;
  for (int32_t i = 0; i < options_.info.draft_length; ++i) {
    const int32_t next = NextToken(state, vocab_size);
    const double dice = static_cast<double>(Mix(state ^ options_.draft_seed) >> 11) * 0x1.0p-53;
    const int32_t draft = dice < options_.draft_accuracy ? next : (next + 1) % vocab_size;
    slot->drafts.push_back(draft);
    state = PushToken(state, draft);
  }
}

}  // namespace firesteel
