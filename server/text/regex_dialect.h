// Translates the regular expressions of tokenizer.json to PCRE2 syntax.
//
// The files are written for Oniguruma with Ruby syntax, and the two dialects give some constructs different meanings
// (\h, \w, \b, \v, ^, nested classes, ...). The translation passes what both read alike, rewrites what differs only in
// spelling and refuses everything else by name: a silently different split would give wrong ids. Pure function.
#pragma once

#include <string>
#include <string_view>

#include "kernels/core/status.h"

namespace firesteel {

// `where` names the pattern in errors. REQUIRES of the use: compile with UTF and UCP, newline convention LF.
Result<std::string> TranslateOnigurumaPattern(std::string_view pattern, const std::string& where);

}  // namespace firesteel
