// Finds stop strings in a stream of text and holds back what may still become one.
//
// The stop that completes first wins (of several that complete together the one that starts first); text from its
// first byte on is never released. Result does not depend on how the text was cut into pushes. One object per stream,
// used by one thread at a time; a push costs O(bytes * stops).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace firesteel {

class StopMatcher {
 public:
  // REQUIRES: no stop is empty.
  explicit StopMatcher(std::vector<std::string> stops);

  // Appends text; returns what can be released. After a match further pushes release nothing.
  std::string Push(std::string_view text);

  // Ends the stream without a match: releases what was held back.
  std::string Finish();

  bool matched() const { return matched_ >= 0; }
  const std::string& matched_stop() const { return stops_[static_cast<size_t>(matched_)]; }

 private:
  // Knuth-Morris-Pratt state of one stop.
  struct Progress {
    // [stop bytes]: longest proper border of the first i + 1 bytes.
    std::vector<size_t> border_bytes;
    size_t matched_bytes = 0;  // longest prefix of the stop that the text ends with
  };

  static std::vector<size_t> BorderTable(std::string_view stop);
  // Feeds one byte; true when the stop is complete.
  bool Advance(size_t stop, char byte);

  std::vector<std::string> stops_;
  std::vector<Progress> progress_;  // [stops]
  std::string held_;                // the longest end of the text that is a proper prefix of a stop
  int matched_ = -1;
};

}  // namespace firesteel
