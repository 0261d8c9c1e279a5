#include "engine/sched/draft_policy.h"

#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr int32_t kWindow = 128;

// One measured batch size; verifying n drafts costs base + n * per_draft.
StepCosts Costs(double base, double per_draft, double propose) {
  StepCosts costs;
  costs.sequences = {1, 9};
  costs.draft_length = 5;
  for (const int scale : {1, 9}) {
    for (int n = 0; n <= 5; ++n) costs.target_us.push_back(scale * (base + n * per_draft));
    costs.propose_us.push_back(scale * propose);
  }
  return costs;
}

TEST_CASE("step costs are interpolated between batch sizes and constant outside", "[sched]") {
  const StepCosts costs = Costs(100, 10, 20);
  CHECK(costs.TargetUs(1, 2) == 120);
  CHECK(costs.TargetUs(5, 0) == 500);
  CHECK(costs.TargetUs(40, 0) == 900);
  CHECK(costs.ProposeUs(5) == 100);
}

TEST_CASE("a fixed policy always verifies and proposes its length", "[sched]") {
  DraftPolicy policy = DraftPolicy::Fixed(3);
  policy.Observe(3, 0);
  CHECK(policy.Length(4) == 3);
  CHECK(policy.ShouldPropose(4));
  CHECK_FALSE(DraftPolicy::Fixed(0).ShouldPropose(4));
}

TEST_CASE("cheap verification with good acceptance takes every draft", "[sched]") {
  DraftPolicy policy = DraftPolicy::Auto(Costs(100, 1, 5), kWindow);
  for (int i = 0; i < 1000; ++i) policy.Observe(5, 5);
  CHECK(policy.Length(1) == 5);
  CHECK(policy.ShouldPropose(1));
}

TEST_CASE("drafts that are accepted only at the first positions are cut there", "[sched]") {
  DraftPolicy policy = DraftPolicy::Auto(Costs(100, 20, 10), kWindow);
  for (int i = 0; i < 2000; ++i) policy.Observe(5, 2);
  CHECK(policy.Length(1) == 2);
}

TEST_CASE("drafting that does not pay is only probed", "[sched]") {
  DraftPolicy policy = DraftPolicy::Auto(Costs(100, 100, 100), kWindow);
  for (int i = 0; i < 2000; ++i) policy.Observe(5, 1);
  int proposals = 0;
  for (int i = 0; i < 10 * DraftPolicy::kProbeInterval; ++i) proposals += policy.ShouldPropose(1);
  CHECK(proposals == 10);
  CHECK(policy.Length(1) == 5);  // a probe looks at all drafts
}

TEST_CASE("while drafting does not pay its context is kept only around probes", "[sched]") {
  DraftPolicy policy = DraftPolicy::Auto(Costs(100, 100, 100), kWindow);
  for (int i = 0; i < 2000; ++i) policy.Observe(5, 1);
  int committed = 0;
  int committed_in_a_row = 0;
  for (int i = 0; i < DraftPolicy::kProbeInterval; ++i) {
    const bool probes = policy.ShouldPropose(1);
    const bool commits = policy.ShouldCommit(1);
    committed += commits ? 1 : 0;
    committed_in_a_row = commits ? committed_in_a_row + 1 : 0;
    CHECK(probes == (i == DraftPolicy::kProbeInterval - 1));
  }
  CHECK(committed_in_a_row > kWindow);
  CHECK(committed < DraftPolicy::kProbeInterval / 8);
  CHECK(policy.ShouldCommit(1));  // until the probe is judged
}

TEST_CASE("a fixed length and drafting that pays keep the whole draft context", "[sched]") {
  CHECK(DraftPolicy::Fixed(3).ShouldCommit(1));
  CHECK(DraftPolicy::Fixed(0).ShouldCommit(1));
  DraftPolicy policy = DraftPolicy::Auto(Costs(100, 1, 5), kWindow);
  for (int i = 0; i < DraftPolicy::kProbeInterval; ++i) {
    policy.ShouldPropose(1);
    REQUIRE(policy.ShouldCommit(1));
  }
}

TEST_CASE("a drafter that recovers is taken up again after probes", "[sched]") {
  DraftPolicy policy = DraftPolicy::Auto(Costs(100, 5, 20), kWindow);
  for (int i = 0; i < 2000; ++i) policy.Observe(5, 0);
  REQUIRE_FALSE(policy.ShouldPropose(1));
  for (int i = 0; i < 400; ++i) policy.Observe(5, 4);
  CHECK(policy.ShouldPropose(1));
  CHECK(policy.Length(1) >= 3);
}

}  // namespace
}  // namespace firesteel
