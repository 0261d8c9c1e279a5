// What depends on the CPU column's own rounding: proposals whose bits are those of its target distribution.
#include <numeric>
#include <vector>

#include "kernels/cpu/vector_ops.h"
#include "tests/kernels/support/sampled_blocks.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

using sampled_blocks::Counts;
using sampled_blocks::kDrafts;
using sampled_blocks::kTemperature;
using sampled_blocks::kVocab;
using sampled_blocks::Logits;
using sampled_blocks::N;
using sampled_blocks::Sample;

TEST_CASE("drafts from the target's own distribution are always accepted", "[ops][verify]") {
  OpFixture ops(2);
  // Rounded exactly as the kernel does it, so that p == q bit for bit.
  std::vector<std::vector<float>> q;
  for (int32_t i = 0; i < kDrafts; ++i) {
    std::vector<float> p(kVocab);
    ScaleRow(Logits()[N(i)].data(), 1.0F / kTemperature, nullptr, kVocab, p.data());
    const float sum = ExpShifted(p.data(), kVocab, p[N(ArgMax(p.data(), kVocab))]);
    ScaleRow(p.data(), 1.0F / sum, nullptr, kVocab, p.data());
    q.push_back(p);
  }
  const Counts counts = Sample(Logits(), q, 1.0F, true);
  CHECK(counts.accepted_first == counts.steps);
  CHECK(std::accumulate(counts.token[kDrafts].begin(), counts.token[kDrafts].end(), 0) ==
        counts.steps);
}

}  // namespace
}  // namespace firesteel
