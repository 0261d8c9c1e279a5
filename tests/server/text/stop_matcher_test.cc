#include "server/text/stop_matcher.h"

#include <random>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace firesteel {
namespace {

struct Outcome {
  std::string released;
  std::string stop;  // empty: no match

  bool operator==(const Outcome&) const = default;
};

Outcome Feed(const std::vector<std::string>& stops, const std::vector<std::string>& chunks) {
  StopMatcher matcher(stops);
  Outcome outcome;
  for (const std::string& chunk : chunks) outcome.released += matcher.Push(chunk);
  outcome.released += matcher.Finish();
  if (matcher.matched()) outcome.stop = matcher.matched_stop();
  return outcome;
}

// The definition: the smallest end, then the smallest start.
Outcome ByDefinition(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string longest;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && stop.size() > longest.size() &&
          text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = stop;
      }
    }
    if (!longest.empty()) return {text.substr(0, end - longest.size()), longest};
  }
  return {text, ""};
}

}  // namespace

TEST_CASE("without stops all text passes at once", "[stop_matcher]") {
  StopMatcher matcher({});
  CHECK(matcher.Push("abc") == "abc");
  CHECK_FALSE(matcher.matched());
  CHECK(matcher.Finish().empty());
}

TEST_CASE("text that may become a stop is held back and nothing else", "[stop_matcher]") {
  StopMatcher matcher({"</s>"});
  CHECK(matcher.Push("ab<") == "ab");
  CHECK(matcher.Push("/") == "");
  CHECK(matcher.Push("x<") == "</x");
  CHECK(matcher.Push("</") == "<");
  CHECK(matcher.Finish() == "</");
}

TEST_CASE("after a match nothing more is released", "[stop_matcher]") {
  StopMatcher matcher({"END"});
  CHECK(matcher.Push("one END two") == "one ");
  REQUIRE(matcher.matched());
  CHECK(matcher.matched_stop() == "END");
  CHECK(matcher.Push("three").empty());
  CHECK(matcher.Finish().empty());
}

TEST_CASE("a stop is found at every cut", "[stop_matcher]") {
  const std::string text = "xaabaabaacyz";
  const Outcome expected{"xaab", "aabaac"};
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      CHECK(Feed({"aabaac"}, {text.substr(0, first), text.substr(first, second - first),
                              text.substr(second)}) == expected);
    }
  }
}

TEST_CASE("a stop that overlaps itself is found", "[stop_matcher]") {
  CHECK(Feed({"abab"}, {"aba", "bab"}) == Outcome{"", "abab"});
  CHECK(Feed({"aab"}, {"a", "a", "a", "a", "b"}) == Outcome{"aa", "aab"});
}

TEST_CASE("of two stops the one that completes first wins", "[stop_matcher]") {
  CHECK(Feed({"abcdef", "cd"}, {"xabcdef"}) == Outcome{"xab", "cd"});
  CHECK(Feed({"bc", "abcd"}, {"abcd"}) == Outcome{"a", "bc"});
}

TEST_CASE("a stop that is the prefix of another one wins", "[stop_matcher]") {
  CHECK(Feed({"\n\n", "\n"}, {"a\n\nb"}) == Outcome{"a", "\n"});
  CHECK(Feed({"ab", "abc"}, {"abc"}) == Outcome{"", "ab"});
}

TEST_CASE("of stops that complete together the one that starts first wins", "[stop_matcher]") {
  CHECK(Feed({"c", "abc", "bc"}, {"xabc"}) == Outcome{"x", "abc"});
}

TEST_CASE("the longest end that may become any stop is held", "[stop_matcher]") {
  StopMatcher matcher({"]x", "]]]y"});
  CHECK(matcher.Push("a]]") == "a");
  CHECK(matcher.Push("]]") == "]");
  CHECK(matcher.Push("y").empty());
  REQUIRE(matcher.matched());
  CHECK(matcher.matched_stop() == "]]]y");
}

TEST_CASE("stops of several bytes per character match whole characters", "[stop_matcher]") {
  CHECK(Feed({"é"}, {"aè", "é"}) == Outcome{"aè", "é"});
}

TEST_CASE("random stops and texts agree with the definition at random cuts", "[stop_matcher]") {
  std::mt19937 random(6);
  const auto random_text = [&](uint32_t most) {
    std::string text(1 + random() % most, 'a');
    for (char& letter : text) letter = "ab"[random() % 2];
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (uint32_t count = 1 + random() % 3; count > 0; --count) stops.push_back(random_text(6));
    const std::string text = random_text(20);
    std::vector<std::string> chunks;
    for (size_t begin = 0; begin < text.size();) {
      const size_t bytes = 1 + random() % 5;
      chunks.push_back(text.substr(begin, bytes));
      begin += bytes;
    }
    INFO(text);
    REQUIRE(Feed(stops, chunks) == ByDefinition(stops, text));
  }
}

}  // namespace firesteel
