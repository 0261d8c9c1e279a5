#include "server/text/bpe_merger.h"

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

namespace firesteel {
namespace {

std::array<int32_t, 256> IdentityBytes() {
  std::array<int32_t, 256> ids;
  for (int i = 0; i < 256; ++i) ids[static_cast<size_t>(i)] = i;
  return ids;
}

std::vector<int32_t> Encode(const BpeMerger& merger, const std::string& piece) {
  BpeMerger::Workspace workspace;
  std::vector<int32_t> ids;
  merger.Encode(piece, &workspace, &ids);
  return ids;
}

// The definition, step by step: find the lowest rank, leftmost, merge, repeat.
std::vector<int32_t> EncodeByDefinition(
    const std::map<std::pair<int32_t, int32_t>, std::pair<int32_t, int32_t>>& merges,
    const std::string& piece) {
  std::vector<int32_t> ids;
  for (const char byte : piece) ids.push_back(static_cast<uint8_t>(byte));
  for (;;) {
    int32_t best_rank = INT32_MAX;
    size_t best = 0;
    int32_t merged = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto merge = merges.find({ids[i], ids[i + 1]});
      if (merge == merges.end() || merge->second.first >= best_rank) continue;
      best_rank = merge->second.first;
      merged = merge->second.second;
      best = i;
    }
    if (best_rank == INT32_MAX) return ids;
    ids[best] = merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

}  // namespace

TEST_CASE("without merges every byte is its own token", "[tokenizer]") {
  const BpeMerger merger(IdentityBytes());
  CHECK(Encode(merger, "ab\xff") == std::vector<int32_t>{'a', 'b', 0xff});
  CHECK(Encode(merger, "").empty());
}

TEST_CASE("the lowest rank merges first even to the right", "[tokenizer]") {
  BpeMerger merger(IdentityBytes());
  REQUIRE(merger.AddMerge('b', 'c', 0, 300));
  REQUIRE(merger.AddMerge('a', 'b', 1, 301));
  CHECK(Encode(merger, "abc") == std::vector<int32_t>{'a', 300});
  CHECK(Encode(merger, "abd") == std::vector<int32_t>{301, 'd'});
}

TEST_CASE("equal ranks merge from the left", "[tokenizer]") {
  BpeMerger merger(IdentityBytes());
  REQUIRE(merger.AddMerge('a', 'a', 0, 300));
  CHECK(Encode(merger, "aaa") == std::vector<int32_t>{300, 'a'});
  CHECK(Encode(merger, "aaaaa") == std::vector<int32_t>{300, 300, 'a'});
}

TEST_CASE("a pair has one merge", "[tokenizer]") {
  BpeMerger merger(IdentityBytes());
  CHECK(merger.AddMerge('a', 'b', 0, 300));
  CHECK_FALSE(merger.AddMerge('a', 'b', 1, 301));
}

TEST_CASE("merging agrees with its definition on random merges and pieces", "[tokenizer]") {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    BpeMerger merger(IdentityBytes());
    std::map<std::pair<int32_t, int32_t>, std::pair<int32_t, int32_t>> merges;
    std::vector<int32_t> tokens = {'a', 'b', 'c'};
    for (int32_t rank = 0; rank < 20; ++rank) {
      const int32_t left = tokens[random() % tokens.size()];
      const int32_t right = tokens[random() % tokens.size()];
      const int32_t merged = 256 + rank;
      if (!merger.AddMerge(left, right, rank, merged)) continue;
      merges[{left, right}] = {rank, merged};
      tokens.push_back(merged);
    }
    for (int i = 0; i < 20; ++i) {
      std::string piece;
      for (uint32_t bytes = random() % 40; bytes > 0; --bytes) piece += "abc"[random() % 3];
      INFO(piece);
      REQUIRE(Encode(merger, piece) == EncodeByDefinition(merges, piece));
    }
  }
}

}  // namespace firesteel
