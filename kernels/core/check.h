// Checks of invariants. A failed check is a bug of ours, never a user's input: it prints and aborts.
// FIRESTEEL_CHECK is always on; FIRESTEEL_DCHECK only in builds without NDEBUG.
#pragma once

#include <string>

namespace firesteel {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);

}  // namespace firesteel

#define FIRESTEEL_CHECK(condition, message)                                \
  do {                                                                     \
    if (!(condition)) [[unlikely]]                                         \
      ::firesteel::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
  } while (false)

#ifdef NDEBUG
#define FIRESTEEL_DCHECK(condition, message) \
  do {                                       \
  } while (false)
#else
#define FIRESTEEL_DCHECK(condition, message) FIRESTEEL_CHECK(condition, message)
#endif
