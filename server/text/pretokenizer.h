// Cuts text into the pieces that BPE merges within: a list of regex splits, each applied to the pieces of the one
// before. Immutable after Create; any thread may call Split.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/status.h"

namespace firesteel {

struct SplitSpec {
  enum class Behavior {
    kIsolated,            // each match is a piece
    kRemoved,             // matches are dropped
    kMergedWithPrevious,  // a match ends the piece before it
    kMergedWithNext,      // a match begins the piece after it
  };
  std::string where;    // names the split in errors
  std::string pattern;  // Oniguruma syntax, or a plain string when `literal`
  bool literal = false;
  bool invert = false;  // what lies between the matches counts as the match
  Behavior behavior = Behavior::kIsolated;
};

class Pretokenizer {
 public:
  // Unsupported names a pattern construct that the two regex dialects read differently, or a pattern that can match
  // the empty text.
  static Result<Pretokenizer> Create(const std::vector<SplitSpec>& splits);

  Pretokenizer(Pretokenizer&&) noexcept;
  Pretokenizer& operator=(Pretokenizer&&) noexcept;
  ~Pretokenizer();

  // Pieces as views into `text`, none empty. InvalidArgument when a regex runs into its match limits on this text.
  // REQUIRES: valid UTF-8.
  Result<std::vector<std::string_view>> Split(std::string_view text) const;

 private:
  class Step;
  Pretokenizer();
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace firesteel
