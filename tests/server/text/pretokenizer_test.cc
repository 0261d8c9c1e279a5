#include "server/text/pretokenizer.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace firesteel {
namespace {

using Behavior = SplitSpec::Behavior;
using Pieces = std::vector<std::string>;

SplitSpec Regex(const std::string& pattern, Behavior behavior = Behavior::kIsolated,
                bool invert = false) {
  SplitSpec spec;
  spec.where = "split";
  spec.pattern = pattern;
  spec.behavior = behavior;
  spec.invert = invert;
  return spec;
}

Pieces Split(const std::vector<SplitSpec>& specs, const std::string& text) {
  const auto pretokenizer = Pretokenizer::Create(specs);
  INFO(pretokenizer.status().ToString());
  REQUIRE(pretokenizer.ok());
  const auto pieces = pretokenizer->Split(text);
  INFO(pieces.status().ToString());
  REQUIRE(pieces.ok());
  return Pieces(pieces->begin(), pieces->end());
}

Status CreateStatus(const std::string& pattern) {
  return Pretokenizer::Create({Regex(pattern)}).status();
}

}  // namespace

TEST_CASE("isolated matches are pieces of their own", "[tokenizer]") {
  CHECK(Split({Regex("-")}, "a--b-") == Pieces{"a", "-", "-", "b", "-"});
  CHECK(Split({Regex("-")}, "") == Pieces{});
}

TEST_CASE("removed matches are dropped", "[tokenizer]") {
  CHECK(Split({Regex("-", Behavior::kRemoved)}, "-a--b-") == Pieces{"a", "b"});
}

TEST_CASE("a match joins the piece before it, a second one does not", "[tokenizer]") {
  CHECK(Split({Regex("-", Behavior::kMergedWithPrevious)}, "-a--b-c") ==
        Pieces{"-", "a-", "-", "b-", "c"});
}

TEST_CASE("a match joins the piece after it, the first of two does not", "[tokenizer]") {
  CHECK(Split({Regex("-", Behavior::kMergedWithNext)}, "a-b--c-") ==
        Pieces{"a", "-b", "-", "-c", "-"});
}

TEST_CASE("an inverted split treats the gaps as matches", "[tokenizer]") {
  CHECK(Split({Regex("[a-z]+", Behavior::kRemoved, true)}, "ab-cd--e") == Pieces{"ab", "cd", "e"});
}

TEST_CASE("splits are applied in order to the pieces", "[tokenizer]") {
  CHECK(Split({Regex("\\p{N}{1,3}"), Regex("[a-z]+1?")}, "ab1234c") ==
        Pieces{"ab", "123", "4", "c"});
}

TEST_CASE("a plain string pattern is not a regex", "[tokenizer]") {
  SplitSpec spec = Regex("a.");
  spec.literal = true;
  CHECK(Split({spec}, "xa.ab") == Pieces{"x", "a.", "ab"});
}

TEST_CASE("lookahead does not see beyond the piece", "[tokenizer]") {
  CHECK(Split({Regex("x"), Regex("\\s+(?!\\S)|\\s+")}, "a  xb  c") ==
        Pieces{"a", "  ", "x", "b", " ", " ", "c"});
}

TEST_CASE("white space is that of Unicode without the Mongolian vowel separator", "[tokenizer]") {
  CHECK(Split({Regex("\\s+")}, "a\u00a0\u3000\u0085\vb\u180ec") ==
        Pieces{"a", "\u00a0\u3000\u0085\v", "b\u180ec"});
  CHECK(Split({Regex("[^\\s]+")}, "\u180e a") == Pieces{"\u180e", " ", "a"});
}

TEST_CASE("a script name means the script, not its extensions", "[tokenizer]") {
  // U+30FC is Common and belongs to Hiragana and Katakana by extension only.
  CHECK(Split({Regex("\\p{Katakana}+")}, "\u30a2\u30fc") == Pieces{"\u30a2", "\u30fc"});
}

TEST_CASE("constructs that the two dialects read differently are refused", "[tokenizer]") {
  const char* const patterns[] = {"\\h",    "\\w+",   "a\\b",  "\\v",     "^a",      "a$",
                                  "[a[b]]", "[a&&b]", "\\x41", "(?m:a)",  "a{,3}",   "a{1,2}+",
                                  "(a)\\1", "[]a]",   "\\pL",  "(*UTF)a", "(?<n>a)", "a\\"};
  for (const char* pattern : patterns) {
    INFO(pattern);
    CHECK(CreateStatus(pattern).code() == StatusCode::kUnsupported);
  }
}

TEST_CASE("patterns that can match nothing are refused", "[tokenizer]") {
  CHECK(CreateStatus("a*").code() == StatusCode::kUnsupported);
  CHECK(CreateStatus("a|").code() == StatusCode::kUnsupported);
}

TEST_CASE("a pattern that does not compile is an invalid argument", "[tokenizer]") {
  CHECK(CreateStatus("(a").code() == StatusCode::kInvalidArgument);
  CHECK(CreateStatus("\\p{Nonsense}").code() == StatusCode::kInvalidArgument);
}

TEST_CASE("a pattern that backtracks without end gives a status", "[tokenizer]") {
  const auto pretokenizer = Pretokenizer::Create({Regex("(?:a|a)+b")});
  REQUIRE(pretokenizer.ok());
  const auto pieces = pretokenizer->Split(std::string(64, 'a') + "cb");
  CHECK(pieces.status().code() == StatusCode::kInvalidArgument);
}

}  // namespace firesteel
