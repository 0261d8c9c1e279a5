#include "engine/sched/sequence.h"

#include <vector>

#include "engine/sched/sequence_table.h"
#include "tests/engine/sched/scheduler_harness.h"

namespace firesteel {
namespace {

Sequence MakeSequence(int32_t max_output, bool ignore_eos = false) {
  Request request = ToyRequest(1, 4, max_output);
  request.stop_tokens = {7, 9};
  request.sampling.ignore_eos = ignore_eos;
  return Sequence(std::move(request), 0, max_output);
}

Sequence::Emission Emit(Sequence* sequence, std::vector<int32_t> tokens) {
  return sequence->Emit(tokens, true);
}

}  // namespace

TEST_CASE("tokens after the first stop token of a block are dropped", "[sched][sequence]") {
  Sequence sequence = MakeSequence(10);
  const Sequence::Emission emission = Emit(&sequence, {1, 9, 2, 7});
  CHECK(emission.num_tokens == 2);
  CHECK(emission.finish == FinishReason::kStop);
  CHECK(sequence.emitted() == 2);
}

TEST_CASE("a stop token beyond the output limit does not count", "[sched][sequence]") {
  Sequence sequence = MakeSequence(2);
  const Sequence::Emission emission = Emit(&sequence, {1, 2, 9});
  CHECK(emission.num_tokens == 2);
  CHECK(emission.finish == FinishReason::kLength);
}

TEST_CASE("a stop token in the last place allowed is a stop", "[sched][sequence]") {
  Sequence sequence = MakeSequence(2);
  CHECK(Emit(&sequence, {1, 9, 3}).finish == FinishReason::kStop);
}

TEST_CASE("stop tokens are ordinary tokens under ignore_eos", "[sched][sequence]") {
  Sequence sequence = MakeSequence(3, true);
  const Sequence::Emission emission = Emit(&sequence, {7, 9});
  CHECK(emission.num_tokens == 2);
  CHECK(emission.finish == FinishReason::kNone);
}

TEST_CASE("drafts are limited by what may still be emitted", "[sched][sequence]") {
  Sequence sequence = MakeSequence(4);
  CHECK(sequence.NumDrafts(5) == 0);  // nothing was proposed yet
  Emit(&sequence, {1});
  CHECK(sequence.NumDrafts(5) == 3);  // a whole block of 3, although one row already gives a token
  CHECK(sequence.NumDrafts(2) == 2);
}

TEST_CASE("nothing is proposed when no draft could be verified", "[sched][sequence]") {
  Sequence sequence = MakeSequence(3);
  CHECK_FALSE(sequence.ShouldPropose(0));
  CHECK(sequence.ShouldPropose(4));
  Emit(&sequence, {1, 2});
  CHECK_FALSE(sequence.ShouldPropose(4));
}

TEST_CASE("a preempted sequence prefills all it knows and verifies no stale draft",
          "[sched][sequence]") {
  Sequence sequence = MakeSequence(6);
  sequence.TakeSlot(SlotId{2});
  sequence.CommitPrefill(4);
  Emit(&sequence, {1, 2});
  sequence.Preempt();
  CHECK(sequence.phase() == SequencePhase::kPrefill);
  CHECK(sequence.computed() == 0);
  CHECK(sequence.known() == 6);
  CHECK(sequence.NumDrafts(3) == 0);
  CHECK_FALSE(sequence.slot().valid());
}

TEST_CASE("a recomputed prompt is not counted again", "[sched][sequence]") {
  Sequence sequence = MakeSequence(6);
  CHECK(sequence.CommitPrefill(3) == 3);
  sequence.Preempt();
  CHECK(sequence.CommitPrefill(2) == 0);
  CHECK(sequence.CommitPrefill(2) == 1);
}

TEST_CASE("the table lists running sequences oldest first, whatever their slots",
          "[sched][sequence_table]") {
  SequenceTable table(2);
  table.Place(std::make_unique<Sequence>(ToyRequest(10, 1, 1), 5, 1));
  table.Place(std::make_unique<Sequence>(ToyRequest(11, 1, 1), 3, 1));
  REQUIRE(table.running().size() == 2);
  CHECK(table.running()[0]->id() == RequestId{11});
  CHECK(table.num_free() == 0);
  table.Remove(*table.running()[0]);
  CHECK(table.num_free() == 1);
  CHECK(table.Find(RequestId{11}) == nullptr);
  CHECK(table.Find(RequestId{10}) != nullptr);
}

}  // namespace firesteel
