#include "server/text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace firesteel {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  progress_.reserve(stops_.size());
  for (const std::string& stop : stops_) {
    FIRESTEEL_CHECK(!stop.empty(), "a stop string is empty");
    progress_.push_back({BorderTable(stop), 0});
  }
}

std::vector<size_t> StopMatcher::BorderTable(std::string_view stop) {
  std::vector<size_t> border_bytes(stop.size(), 0);
  size_t border = 0;
  for (size_t i = 1; i < stop.size(); ++i) {
    while (border > 0 && stop[i] != stop[border]) border = border_bytes[border - 1];
    if (stop[i] == stop[border]) ++border;
    border_bytes[i] = border;
  }
  return border_bytes;
}

bool StopMatcher::Advance(size_t stop, char byte) {
  const std::string& text = stops_[stop];
  Progress& progress = progress_[stop];
  size_t matched_bytes = progress.matched_bytes;
  while (matched_bytes > 0 && text[matched_bytes] != byte) {
    matched_bytes = progress.border_bytes[matched_bytes - 1];
  }
  if (text[matched_bytes] == byte) ++matched_bytes;
  progress.matched_bytes = matched_bytes;
  return matched_bytes == text.size();
}

std::string StopMatcher::Push(std::string_view text) {
  if (matched()) return std::string();
  const size_t held_before = held_.size();
  held_.append(text);
  for (size_t end = held_before; end < held_.size(); ++end) {
    for (size_t stop = 0; stop < stops_.size(); ++stop) {
      if (!Advance(stop, held_[end])) continue;
      // All of these end here, so the longest one starts first.
      if (!matched() || stops_[stop].size() > matched_stop().size()) {
        matched_ = static_cast<int>(stop);
      }
    }
    if (!matched()) continue;
    std::string released = held_.substr(0, end + 1 - matched_stop().size());
    held_.clear();
    return released;
  }
  size_t keep_bytes = 0;
  for (const Progress& progress : progress_) {
    keep_bytes = std::max(keep_bytes, progress.matched_bytes);
  }
  std::string released = held_.substr(0, held_.size() - keep_bytes);
  held_.erase(0, released.size());
  return released;
}

std::string StopMatcher::Finish() { return std::exchange(held_, std::string()); }

}  // namespace firesteel
