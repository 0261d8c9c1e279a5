#include "kernels/core/parallel_for.h"

#include <atomic>
#include <cstdint>
#include <set>
#include <vector>

#include "tests/support/catch.h"

namespace firesteel {
namespace {

constexpr size_t kScratch = size_t{1} << 16;

TEST_CASE("every item is visited exactly once for any worker count and grain",
          "[core][parallel_for]") {
  const int threads = GENERATE(1, 2, 3, 4);
  WorkerPool pool(threads, kScratch);
  for (const int64_t count : {0, 1, 2, 7, 8, 9, 63, 64, 65, 1000}) {
    for (const int64_t grain : {1, 3, 8, 64, 5000}) {
      std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
      pool.Run(count, grain, [&](int64_t begin, int64_t end, WorkerScratch&) {
        for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
      });
      int64_t once = 0;
      for (const auto& v : visits) once += v.load() == 1 ? 1 : 0;
      INFO("threads " << threads << " count " << count << " grain " << grain);
      CHECK(once == count);
    }
  }
}

TEST_CASE("inner borders of a partition are multiples of the grain", "[core][parallel_for]") {
  WorkerPool pool(4, kScratch);
  for (const int64_t count : {10, 97, 1024}) {
    for (const int64_t grain : {2, 5, 16}) {
      std::vector<std::atomic<int>> starts(static_cast<size_t>(count));
      pool.Run(count, grain, [&](int64_t begin, int64_t, WorkerScratch&) {
        starts[static_cast<size_t>(begin)] = 1;
      });
      for (int64_t i = 0; i < count; ++i) {
        if (starts[static_cast<size_t>(i)].load() == 1) CHECK(i % grain == 0);
      }
    }
  }
}

TEST_CASE("work within one grain stays on the caller", "[core][parallel_for]") {
  WorkerPool pool(3, kScratch);
  const std::thread::id caller = std::this_thread::get_id();
  int calls = 0;
  pool.Run(8, 8, [&](int64_t begin, int64_t end, WorkerScratch&) {
    CHECK(std::this_thread::get_id() == caller);
    CHECK(begin == 0);
    CHECK(end == 8);
    ++calls;
  });
  CHECK(calls == 1);
}

TEST_CASE("a pool is reusable for many rounds and sees each round's data", "[core][parallel_for]") {
  WorkerPool pool(4, kScratch);
  std::vector<int64_t> values(256, 0);
  for (int64_t round = 1; round <= 3000; ++round) {
    // Each round reads what other workers wrote in the round before.
    std::vector<int64_t> next(values.size());
    pool.Run(256, 1, [&](int64_t begin, int64_t end, WorkerScratch&) {
      for (int64_t i = begin; i < end; ++i) {
        next[static_cast<size_t>(i)] = values[static_cast<size_t>((i + 97) % 256)] + 1;
      }
    });
    values.swap(next);
  }
  for (const int64_t v : values) REQUIRE(v == 3000);
}

TEST_CASE("rounds of alternating size never run an item twice", "[core][parallel_for]") {
  // A worker that is late for a short round must not claim a piece of the longer round being set
  // up.
  WorkerPool pool(4, kScratch);
  std::vector<std::atomic<int>> visits(96);
  int wrong = 0;
  for (int round = 0; round < 20000; ++round) {
    const int64_t count = round % 2 == 0 ? 2 : 96;
    for (auto& v : visits) v.store(0, std::memory_order_relaxed);
    pool.Run(count, 1, [&](int64_t begin, int64_t end, WorkerScratch&) {
      for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
    });
    for (int64_t i = 0; i < 96; ++i) {
      wrong += visits[static_cast<size_t>(i)].load() == (i < count ? 1 : 0) ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("two pools run one inside the other", "[core][parallel_for]") {
  WorkerPool outer(2, kScratch);
  std::vector<std::unique_ptr<WorkerPool>> inner;
  for (int i = 0; i < 2; ++i) inner.push_back(std::make_unique<WorkerPool>(2, kScratch));
  std::atomic<int64_t> sum{0};
  outer.Run(2, 1, [&](int64_t begin, int64_t end, WorkerScratch&) {
    for (int64_t i = begin; i < end; ++i) {
      inner[static_cast<size_t>(i)]->Run(100, 1, [&](int64_t b, int64_t e, WorkerScratch&) {
        for (int64_t j = b; j < e; ++j) sum += j;
      });
    }
  });
  CHECK(sum.load() == 2 * 4950);
}

TEST_CASE("workers get scratch of their own that starts empty in every run",
          "[core][parallel_for]") {
  WorkerPool pool(4, kScratch);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> wrong{0};
    pool.Run(64, 1, [&](int64_t begin, int64_t end, WorkerScratch& scratch) {
      if (scratch.Mark() != 0) ++wrong;
      float* values = scratch.Floats(kScratch / 4);  // all of it: a leak would abort
      for (int64_t i = begin; i < end; ++i) {
        values[0] = static_cast<float>(i);
        std::this_thread::yield();
        if (values[0] != static_cast<float>(i)) ++wrong;
      }
    });
    REQUIRE(wrong.load() == 0);
  }
}

TEST_CASE("rewound scratch is handed out again and stays aligned", "[core][parallel_for]") {
  WorkerScratch scratch(1024);
  std::byte* first = scratch.Bytes(3);
  const size_t mark = scratch.Mark();
  std::byte* second = scratch.Bytes(10);
  CHECK(reinterpret_cast<uintptr_t>(first) % 64 == 0);
  CHECK(reinterpret_cast<uintptr_t>(second) % 64 == 0);
  CHECK(second != first);
  scratch.Rewind(mark);
  CHECK(scratch.Bytes(10) == second);
  scratch.Reset();
  CHECK(scratch.Bytes(1) == first);
}

TEST_CASE("pools start and stop without having run", "[core][parallel_for]") {
  for (int i = 0; i < 30; ++i) WorkerPool pool(1 + i % 4, 64);
  CHECK(DefaultThreads() >= 1);
}

}  // namespace
}  // namespace firesteel
