// A tokenizer for tests: a list of pieces, encoded one byte-matching piece at a time (longest first).
// Piece 0 is the end token and decodes to nothing.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/text/tokenizer.h"

namespace firesteel {

class TableTokenizer : public Tokenizer {
 public:
  explicit TableTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}

  Result<std::vector<int32_t>> EncodePlain(std::string_view text) const override {
    std::vector<int32_t> ids;
    while (!text.empty()) {
      int32_t best = 0;
      for (int32_t id = 1; id < vocab_size(); ++id) {
        const std::string& piece = pieces_[static_cast<size_t>(id)];
        const size_t best_size = best == 0 ? 0 : pieces_[static_cast<size_t>(best)].size();
        if (piece.size() > best_size && text.substr(0, piece.size()) == piece) best = id;
      }
      if (best == 0) return InvalidArgument("no piece matches '" + std::string(text) + "'");
      ids.push_back(best);
      text.remove_prefix(pieces_[static_cast<size_t>(best)].size());
    }
    return ids;
  }
  Result<std::vector<int32_t>> EncodeWithSpecials(std::string_view text) const override {
    return EncodePlain(text);
  }
  int32_t SpecialTokenId(std::string_view) const override { return -1; }
  std::string TokenBytes(int32_t id, bool) const override {
    return id == 0 ? std::string() : pieces_[static_cast<size_t>(id)];
  }
  std::string Decode(const std::vector<int32_t>& ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) text += TokenBytes(id, false);
    return text;
  }
  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }

 private:
  std::vector<std::string> pieces_;
};

}  // namespace firesteel
