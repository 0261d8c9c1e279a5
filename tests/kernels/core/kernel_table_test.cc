#include "kernels/core/kernel_table.h"

#include <cstdint>
#include <cstring>

#include "tests/kernels/support/test_device.h"
#include "tests/support/catch.h"

namespace firesteel {
namespace {

TEST_CASE("a column of the table has no empty row", "[core][kernel_table]") {
  static_assert(sizeof(KernelTable) % sizeof(uintptr_t) == 0);
  constexpr size_t kRows = sizeof(KernelTable) / sizeof(uintptr_t);
  uintptr_t rows[kRows];
  std::memcpy(rows, &KernelsUnderTest(), sizeof(KernelTable));
  for (size_t i = 0; i < kRows; ++i) {
    INFO("row " << i);
    CHECK(rows[i] != 0);
  }
}

TEST_CASE("no two rows of a column are the same function", "[core][kernel_table]") {
  constexpr size_t kRows = sizeof(KernelTable) / sizeof(uintptr_t);
  uintptr_t rows[kRows];
  std::memcpy(rows, &KernelsUnderTest(), sizeof(KernelTable));
  for (size_t i = 0; i < kRows; ++i) {
    for (size_t j = i + 1; j < kRows; ++j) CHECK(rows[i] != rows[j]);
  }
}

}  // namespace
}  // namespace firesteel
