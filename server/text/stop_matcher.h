// Finds stop strings in a stream of text and holds back what may still become one.
//
// The stop that completes first wins (then the longest-starting-earliest, i.e. smallest start); text from its first byte
// on is never released. Result does not depend on how the text was cut into pushes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace firesteel {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);  // empty strings are a caller's error (REQUIRES non-empty)

  // Appends text; returns what can be released. After a match further pushes release nothing.
  std::string Push(std::string_view text);

  // Ends the stream without a match: releases what was held back.
  std::string Finish();

  bool matched() const { return matched_ >= 0; }
  const std::string& matched_stop() const { return stops_[static_cast<size_t>(matched_)]; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  int matched_ = -1;
};

}  // namespace firesteel
