// Lines of a file or of standard input, one at a time as they arrive.
//
// Threads: Next and status belong to one thread; Stop may be called from any other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/core/status.h"

namespace firesteel {

class LineSource {
 public:
  virtual ~LineSource() = default;

  // Waits for the next line and returns it without its newline. False at the end, after a failure and after Stop().
  virtual bool Next(std::string* line) = 0;

  // Ends a waiting Next() and refuses later ones.
  virtual void Stop() = 0;

  // What ended the lines: OK unless reading failed.
  virtual Status status() const = 0;
};

// Reads `path`, or standard input for "-". A directory or an unreadable file is an error that names it.
Result<std::unique_ptr<LineSource>> OpenLineSource(const std::string& path);

}  // namespace firesteel
