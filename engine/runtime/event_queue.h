// EventQueue: token events on their way from the scheduler thread to the one caller of WaitEvents.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "engine/api/token_event.h"

namespace firesteel {

class EventQueue {
 public:
  // Scheduler thread. Moves the events out and leaves `events` empty.
  void Push(std::vector<TokenEvent>* events);
  // Scheduler thread. No event follows; a waiter is woken.
  void Close();

  // Output thread. As Engine::WaitEvents: false only when closed and all events were taken.
  bool Wait(int64_t timeout_us, std::vector<TokenEvent>* events);

 private:
  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::vector<TokenEvent> events_;
  bool closed_ = false;
};

}  // namespace firesteel
