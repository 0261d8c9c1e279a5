#include "engine/plan/shape_table.h"

#include "tests/support/catch.h"

namespace firesteel {
namespace {

const PlanLimits kLimits{.max_sequences = 37, .max_rows = 200, .max_appends = 8};

}  // namespace

TEST_CASE("captured sizes are powers of two to 16, steps of 8, and the slot count",
          "[sched][shape]") {
  const ShapeTable table(kLimits, 3, true);
  const std::vector<int32_t> sizes(table.sequence_sizes().begin(), table.sequence_sizes().end());
  CHECK(sizes == std::vector<int32_t>{1, 2, 4, 8, 16, 24, 32, 37});
}

TEST_CASE("a decode-only step is padded to whole verify blocks and captured", "[sched][shape]") {
  const ShapeTable table(kLimits, 3, true);
  const StepShape shape =
      table.ShapeFor({.sequences = 5, .rows = 17, .logit_rows = 17, .decode_only = true});
  CHECK(shape == StepShape{.sequences = 8, .rows = 32, .logit_rows = 32, .captured = true});
}

TEST_CASE("without graphs a decode-only step has the same shape, run eagerly", "[sched][shape]") {
  const ShapeTable table(kLimits, 3, false);
  const StepShape shape =
      table.ShapeFor({.sequences = 2, .rows = 8, .logit_rows = 8, .decode_only = true});
  CHECK(shape == StepShape{.sequences = 2, .rows = 8, .logit_rows = 8, .captured = false});
}

TEST_CASE("a mixed step rounds its rows to 16 and is not captured", "[sched][shape]") {
  const ShapeTable table(kLimits, 3, true);
  const StepShape shape = table.ShapeFor({.sequences = 3, .rows = 50, .logit_rows = 5});
  CHECK(shape == StepShape{.sequences = 4, .rows = 64, .logit_rows = 16, .captured = false});
}

TEST_CASE("padded rows stay within the limit", "[sched][shape]") {
  const ShapeTable table(kLimits, 3, true);
  CHECK(table.ShapeFor({.sequences = 1, .rows = 199, .logit_rows = 1}).rows == 200);
}

TEST_CASE("logit rows never exceed the rows of a small prefill step", "[sched][shape]") {
  const ShapeTable table(kLimits, 15, true);
  const StepShape shape = table.ShapeFor({.sequences = 4, .rows = 4, .logit_rows = 4});
  CHECK(shape.rows == 16);
  CHECK(shape.logit_rows == 16);
}

TEST_CASE("a scored prompt takes more logit rows than the verify blocks would", "[sched][shape]") {
  const ShapeTable table(kLimits, 3, true);
  CHECK(table.ShapeFor({.sequences = 1, .rows = 70, .logit_rows = 70}).logit_rows == 70);
}

TEST_CASE("a decode-only step whose padded blocks exceed the rows is run eagerly",
          "[sched][shape]") {
  const ShapeTable table({.max_sequences = 32, .max_rows = 100, .max_appends = 8}, 4, true);
  const StepShape shape =
      table.ShapeFor({.sequences = 17, .rows = 85, .logit_rows = 85, .decode_only = true});
  CHECK_FALSE(shape.captured);
  CHECK(shape.rows == 96);
}

}  // namespace firesteel
