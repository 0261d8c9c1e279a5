// Launch(stream, table.op, args): the one way operations are enqueued, eager or captured.
#pragma once

#include <type_traits>

#include "kernels/core/device.h"

namespace firesteel {

// Makes equal arguments equal bytes, where the compiler can.
template <typename T>
void ClearPadding([[maybe_unused]] T* value) {
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(value);
#endif
#endif
}

template <typename Args>
struct LaunchPayload {
  void (*op)(Stream&, const Args&);
  Args args;
};

template <typename Args>
void Launch(Stream& stream, void (*op)(Stream&, const Args&), const Args& args) {
  static_assert(std::is_trivially_copyable_v<Args>, "kernel arguments are PODs");
  LaunchPayload<Args> payload{op, args};
  ClearPadding(&payload);
  const RecordedOp record{[](Stream& s, const void* bytes) {
                            const auto& p = *static_cast<const LaunchPayload<Args>*>(bytes);
                            p.op(s, p.args);
                          },
                          &payload, sizeof(payload)};
  if (!stream.Record(record)) op(stream, args);
}

}  // namespace firesteel
