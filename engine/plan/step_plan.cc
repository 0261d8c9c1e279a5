#include "engine/plan/step_plan.h"

#include <cstring>
#include <string>

#include "kernels/core/math.h"

namespace firesteel {
namespace {

constexpr int64_t kSectionAlignment = 64;

template <typename T>
int64_t PlaceSection(int64_t* cursor, int64_t count) {
  const int64_t offset = RoundUp(*cursor, kSectionAlignment);
  *cursor = offset + count * static_cast<int64_t>(sizeof(T));
  return offset;
}

Status CheckCount(const char* what, int32_t found, int32_t limit) {
  if (found >= 0 && found <= limit) return Status::Ok();
  return InvalidArgument("plan: " + std::string(what) + " is " + std::to_string(found) +
                         ", needs 0.." + std::to_string(limit));
}

Status CheckNewSlot(const PlanNewSlot& s, int32_t num_rules) {
  const std::string where = "plan: new slot " + std::to_string(s.slot);
  if (s.rules < -1 || s.rules >= num_rules) {
    return InvalidArgument(where + " has rules " + std::to_string(s.rules) + ", needs -1.." +
                           std::to_string(num_rules - 1));
  }
  if (s.sampling.has_tables() != (s.rules >= 0)) {
    return InvalidArgument(where + " has rules without entries, or entries without rules");
  }
  return Status::Ok();
}

}  // namespace

StepPlan::Layout StepPlan::LayoutFor(const PlanLimits& limits) {
  Layout layout;
  int64_t cursor = sizeof(PlanHeader);
  layout.new_slots = PlaceSection<PlanNewSlot>(&cursor, limits.max_sequences);
  layout.appends = PlaceSection<PlanAppend>(&cursor, limits.max_appends);
  layout.sequences = PlaceSection<PlanSequence>(&cursor, limits.max_sequences);
  layout.tokens = PlaceSection<int32_t>(&cursor, limits.max_rows);
  layout.rules = PlaceSection<SamplingRules>(&cursor, limits.max_sequences);
  layout.total_bytes = RoundUp(cursor, kSectionAlignment);
  return layout;
}

StepPlan::StepPlan(const PlanLimits& limits)
    : limits_(limits),
      layout_(LayoutFor(limits)),
      storage_(static_cast<size_t>(layout_.total_bytes)) {}

void StepPlan::Clear() {
  header() = PlanHeader{};
  shape_ = StepShape{};
}

std::span<PlanNewSlot> StepPlan::new_slots() {
  return {Section<PlanNewSlot>(layout_.new_slots), static_cast<size_t>(limits_.max_sequences)};
}
std::span<PlanAppend> StepPlan::appends() {
  return {Section<PlanAppend>(layout_.appends), static_cast<size_t>(limits_.max_appends)};
}
std::span<PlanSequence> StepPlan::sequences() {
  return {Section<PlanSequence>(layout_.sequences), static_cast<size_t>(limits_.max_sequences)};
}
std::span<int32_t> StepPlan::tokens() {
  return {Section<int32_t>(layout_.tokens), static_cast<size_t>(limits_.max_rows)};
}
std::span<const PlanNewSlot> StepPlan::new_slots() const {
  return {Section<PlanNewSlot>(layout_.new_slots), static_cast<size_t>(limits_.max_sequences)};
}
std::span<const PlanAppend> StepPlan::appends() const {
  return {Section<PlanAppend>(layout_.appends), static_cast<size_t>(limits_.max_appends)};
}
std::span<const PlanSequence> StepPlan::sequences() const {
  return {Section<PlanSequence>(layout_.sequences), static_cast<size_t>(limits_.max_sequences)};
}
std::span<const int32_t> StepPlan::tokens() const {
  return {Section<int32_t>(layout_.tokens), static_cast<size_t>(limits_.max_rows)};
}

std::span<SamplingRules> StepPlan::rules() {
  return {Section<SamplingRules>(layout_.rules), static_cast<size_t>(limits_.max_sequences)};
}
std::span<const SamplingRules> StepPlan::rules() const {
  return {Section<SamplingRules>(layout_.rules), static_cast<size_t>(limits_.max_sequences)};
}

std::span<const std::byte> StepPlan::bytes() const {
  const int64_t live = header().num_rules * static_cast<int64_t>(sizeof(SamplingRules));
  return {storage_.data(), static_cast<size_t>(layout_.rules + live)};
}

Status StepPlan::Validate() const {
  const PlanHeader& h = header();
  FIRESTEEL_RETURN_IF_ERROR(CheckCount("num_sequences", h.num_sequences, limits_.max_sequences));
  FIRESTEEL_RETURN_IF_ERROR(CheckCount("num_rows", h.num_rows, limits_.max_rows));
  FIRESTEEL_RETURN_IF_ERROR(CheckCount("num_logit_rows", h.num_logit_rows, h.num_rows));
  FIRESTEEL_RETURN_IF_ERROR(CheckCount("num_new_slots", h.num_new_slots, limits_.max_sequences));
  FIRESTEEL_RETURN_IF_ERROR(CheckCount("num_appends", h.num_appends, limits_.max_appends));
  FIRESTEEL_RETURN_IF_ERROR(CheckCount("num_sequences", h.num_sequences, shape_.sequences));
  FIRESTEEL_RETURN_IF_ERROR(CheckCount("num_rows", h.num_rows, shape_.rows));
  FIRESTEEL_RETURN_IF_ERROR(CheckCount("num_logit_rows", h.num_logit_rows, shape_.logit_rows));
  FIRESTEEL_RETURN_IF_ERROR(CheckCount("num_rules", h.num_rules, h.num_new_slots));
  for (int32_t i = 0; i < h.num_new_slots; ++i) {
    FIRESTEEL_RETURN_IF_ERROR(CheckNewSlot(new_slots()[static_cast<size_t>(i)], h.num_rules));
  }
  std::vector<bool> seen(static_cast<size_t>(limits_.max_sequences), false);
  int32_t next_row = 0;
  int32_t next_logit_row = 0;
  for (int32_t i = 0; i < h.num_sequences; ++i) {
    const PlanSequence& s = sequences()[static_cast<size_t>(i)];
    const std::string where = "plan: sequence " + std::to_string(i);
    if (s.slot < 0 || s.slot >= limits_.max_sequences) {
      return InvalidArgument(where + " has slot " + std::to_string(s.slot) + ", needs 0.." +
                             std::to_string(limits_.max_sequences - 1));
    }
    if (seen[static_cast<size_t>(s.slot)]) {
      return InvalidArgument(where + " repeats slot " + std::to_string(s.slot));
    }
    seen[static_cast<size_t>(s.slot)] = true;
    if (s.first_row != next_row || s.num_rows <= 0) {
      return InvalidArgument(where + " has rows [" + std::to_string(s.first_row) + ", +" +
                             std::to_string(s.num_rows) + "), needs to start at " +
                             std::to_string(next_row));
    }
    next_row += s.num_rows;
    if (s.num_drafts >= 0 && s.num_rows != s.num_drafts + 1) {
      return InvalidArgument(where + " verifies " + std::to_string(s.num_drafts) + " drafts with " +
                             std::to_string(s.num_rows) + " rows");
    }
    if (s.next_token >= 0 && (s.num_drafts >= 0 || s.num_logit_rows != s.num_rows)) {
      return InvalidArgument(where + " knows its next token, but does not score its rows");
    }
    if (s.num_logit_rows > 0) {
      if (s.first_logit_row != next_logit_row || s.num_logit_rows > s.num_rows) {
        return InvalidArgument(where + " has logit rows [" + std::to_string(s.first_logit_row) +
                               ", +" + std::to_string(s.num_logit_rows) + "), needs to start at " +
                               std::to_string(next_logit_row));
      }
      next_logit_row += s.num_logit_rows;
    }
  }
  if (next_row != h.num_rows || next_logit_row != h.num_logit_rows) {
    return InvalidArgument("plan: sequences cover " + std::to_string(next_row) + " rows and " +
                           std::to_string(next_logit_row) + " logit rows, header says " +
                           std::to_string(h.num_rows) + " and " + std::to_string(h.num_logit_rows));
  }
  return Status::Ok();
}

}  // namespace firesteel
