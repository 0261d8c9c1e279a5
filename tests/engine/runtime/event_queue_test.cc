#include "engine/runtime/event_queue.h"

#include <thread>

#include "tests/support/catch.h"

namespace firesteel {
namespace {

std::vector<TokenEvent> OneEvent(uint64_t id) {
  std::vector<TokenEvent> events(1);
  events[0].id = RequestId{id};
  return events;
}

}  // namespace

TEST_CASE("waiting without events ends at the timeout and is not the end", "[runtime][events]") {
  EventQueue queue;
  std::vector<TokenEvent> events;
  CHECK(queue.Wait(0, &events));
  CHECK(queue.Wait(1000, &events));
  CHECK(events.empty());
}

TEST_CASE("events are appended to what the caller has", "[runtime][events]") {
  EventQueue queue;
  std::vector<TokenEvent> pushed = OneEvent(2);
  queue.Push(&pushed);
  CHECK(pushed.empty());
  std::vector<TokenEvent> events = OneEvent(1);
  CHECK(queue.Wait(0, &events));
  REQUIRE(events.size() == 2);
  CHECK(events[1].id == RequestId{2});
}

TEST_CASE("a closed queue gives its last events before it says that it is the end",
          "[runtime][events]") {
  EventQueue queue;
  std::vector<TokenEvent> pushed = OneEvent(1);
  queue.Push(&pushed);
  queue.Close();
  std::vector<TokenEvent> events;
  CHECK(queue.Wait(0, &events));
  CHECK(events.size() == 1);
  CHECK_FALSE(queue.Wait(0, &events));
}

TEST_CASE("a waiter without a deadline is woken by an event and by the end", "[runtime][events]") {
  EventQueue queue;
  std::vector<TokenEvent> events;
  bool open = true;
  std::thread waiter([&] {
    while (open) open = queue.Wait(INT64_MAX, &events);
  });
  std::vector<TokenEvent> pushed = OneEvent(1);
  queue.Push(&pushed);
  queue.Close();
  waiter.join();
  CHECK(events.size() == 1);
}

}  // namespace firesteel
