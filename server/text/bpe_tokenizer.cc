#include "server/text/bpe_tokenizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "kernels/core/check.h"
#include "server/text/bpe_merger.h"
#include "server/text/byte_level.h"
#include "server/text/incremental_decoder.h"
#include "server/text/pretokenizer.h"
#include "server/text/tokenizer_json.h"
#include "server/text/utf8.h"

namespace firesteel {
namespace {

// Finds the leftmost, then longest added token in raw text.
class AddedTokenMatcher {
 public:
  struct Match {
    size_t begin;
    size_t byte_count;
    int32_t id;
  };

  void Add(const std::string& content, int32_t id) { tokens_.emplace_back(content, id); }
  void Sort() { std::sort(tokens_.begin(), tokens_.end()); }

  std::optional<Match> Find(std::string_view text, size_t begin) const {
    if (tokens_.empty()) return std::nullopt;
    for (size_t i = begin; i < text.size(); ++i) {
      const Entry* longest = LongestPrefix(text.substr(i));
      if (longest != nullptr) return Match{i, longest->first.size(), longest->second};
    }
    return std::nullopt;
  }

 private:
  using Entry = std::pair<std::string, int32_t>;

  // Narrows the sorted list byte by byte to the tokens that agree with `text` so far.
  const Entry* LongestPrefix(std::string_view text) const {
    const Entry* longest = nullptr;
    auto low = tokens_.begin();
    auto high = tokens_.end();
    for (size_t depth = 0; depth < text.size() && low != high; ++depth) {
      // A token that ends here is the first of its range and must not be asked for its next byte.
      const auto byte = static_cast<unsigned char>(text[depth]);
      low = std::partition_point(low, high, [&](const Entry& entry) {
        return entry.first.size() <= depth || static_cast<unsigned char>(entry.first[depth]) < byte;
      });
      high = std::partition_point(low, high, [&](const Entry& entry) {
        return static_cast<unsigned char>(entry.first[depth]) == byte;
      });
      if (low != high && low->first.size() == depth + 1) longest = &*low;
    }
    return longest;
  }

  std::vector<Entry> tokens_;  // by content after Sort; std::string compares bytes as unsigned
};

struct FreeDeleter {
  void operator()(utf8proc_uint8_t* bytes) const { std::free(bytes); }
};

Result<std::string> ToNfc(std::string_view text) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t byte_count =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, FreeDeleter> owner(mapped);
  if (byte_count < 0) {
    return Internal(std::string("text cannot be normalized: ") + utf8proc_errmsg(byte_count));
  }
  return std::string(reinterpret_cast<const char*>(mapped), static_cast<size_t>(byte_count));
}

class BpeTokenizer final : public Tokenizer {
 public:
  struct Parts {
    BpeMerger merger;
    Pretokenizer pretokenizer;
    AddedTokenMatcher raw_tokens;
    AddedTokenMatcher normalized_tokens;
    std::unordered_map<std::string, int32_t> added_ids;
    std::unordered_map<std::string, int32_t> whole_pieces;  // only with ignore_merges
    std::vector<std::string> token_bytes;                   // [vocab_size]
    std::vector<bool> is_special;                           // [vocab_size]
    bool nfc = false;
  };

  explicit BpeTokenizer(Parts parts) : parts_(std::move(parts)) {}

  Result<std::vector<int32_t>> EncodePlain(std::string_view text) const override {
    FIRESTEEL_RETURN_IF_ERROR(CheckUtf8(text));
    std::vector<int32_t> ids;
    BpeMerger::Workspace workspace;
    FIRESTEEL_RETURN_IF_ERROR(AppendText(text, &workspace, &ids));
    return ids;
  }

  Result<std::vector<int32_t>> EncodeWithSpecials(std::string_view text) const override {
    FIRESTEEL_RETURN_IF_ERROR(CheckUtf8(text));
    std::vector<int32_t> ids;
    BpeMerger::Workspace workspace;
    // Tokens matched on raw text go first; the others only see what lies between them.
    FIRESTEEL_RETURN_IF_ERROR(ForEachPart(parts_.raw_tokens, text, &ids, [&](auto outer) {
      return ForEachPart(parts_.normalized_tokens, outer, &ids,
                         [&](auto inner) { return AppendText(inner, &workspace, &ids); });
    }));
    return ids;
  }

  int32_t SpecialTokenId(std::string_view content) const override {
    const auto found = parts_.added_ids.find(std::string(content));
    return found == parts_.added_ids.end() ? -1 : found->second;
  }

  std::string TokenBytes(int32_t id, bool with_specials) const override {
    FIRESTEEL_CHECK(id >= 0 && id < vocab_size(), "token id " + std::to_string(id) +
                                                      " is outside the vocabulary of " +
                                                      std::to_string(vocab_size()));
    const size_t index = static_cast<size_t>(id);
    if (parts_.is_special[index] && !with_specials) return std::string();
    return parts_.token_bytes[index];
  }

  std::string Decode(const std::vector<int32_t>& ids, bool with_specials) const override {
    IncrementalDecoder decoder;
    std::string text;
    for (const int32_t id : ids) text += decoder.Push(TokenBytes(id, with_specials));
    return text + decoder.Finish();
  }

  int32_t vocab_size() const override { return static_cast<int32_t>(parts_.token_bytes.size()); }

 private:
  static Status CheckUtf8(std::string_view text) {
    const std::optional<size_t> invalid = FindInvalidUtf8(text);
    if (!invalid) return Status::Ok();
    return InvalidArgument("text is not valid UTF-8 at byte " + std::to_string(*invalid));
  }

  // Appends the ids of matched tokens and calls `append_text` for what lies between, in order.
  template <typename AppendText>
  static Status ForEachPart(const AddedTokenMatcher& matcher, std::string_view text,
                            std::vector<int32_t>* ids, const AppendText& append_text) {
    size_t begin = 0;
    while (const auto match = matcher.Find(text, begin)) {
      FIRESTEEL_RETURN_IF_ERROR(append_text(text.substr(begin, match->begin - begin)));
      ids->push_back(match->id);
      begin = match->begin + match->byte_count;
    }
    return append_text(text.substr(begin));
  }

  Status AppendText(std::string_view text, BpeMerger::Workspace* workspace,
                    std::vector<int32_t>* ids) const {
    std::string normalized;
    if (parts_.nfc) {
      FIRESTEEL_ASSIGN_OR_RETURN(normalized, ToNfc(text));
      text = normalized;
    }
    FIRESTEEL_ASSIGN_OR_RETURN(const std::vector<std::string_view> pieces,
                               parts_.pretokenizer.Split(text));
    for (const std::string_view piece : pieces) {
      if (!parts_.whole_pieces.empty()) {
        const auto whole = parts_.whole_pieces.find(std::string(piece));
        if (whole != parts_.whole_pieces.end()) {
          ids->push_back(whole->second);
          continue;
        }
      }
      parts_.merger.Encode(piece, workspace, ids);
    }
    return Status::Ok();
  }

  const Parts parts_;
};

// Turns a spec into a tokenizer and checks that its parts agree.
class Builder {
 public:
  Builder(const TokenizerSpec& spec, const std::string& where) : spec_(spec), where_(where) {}

  Result<std::unique_ptr<Tokenizer>> Build() {
    FIRESTEEL_RETURN_IF_ERROR(AddVocab());
    FIRESTEEL_RETURN_IF_ERROR(AddAddedTokens());
    FIRESTEEL_ASSIGN_OR_RETURN(BpeMerger merger, MakeMerger());
    FIRESTEEL_ASSIGN_OR_RETURN(Pretokenizer pretokenizer, Pretokenizer::Create(spec_.splits));
    std::unordered_map<std::string, int32_t> whole_pieces = WholePieces();
    raw_tokens_.Sort();
    normalized_tokens_.Sort();
    return std::unique_ptr<Tokenizer>(std::make_unique<BpeTokenizer>(BpeTokenizer::Parts{
        std::move(merger), std::move(pretokenizer), std::move(raw_tokens_),
        std::move(normalized_tokens_), std::move(added_ids_), std::move(whole_pieces),
        std::move(token_bytes_), std::move(is_special_), spec_.nfc}));
  }

 private:
  Status AddVocab() {
    int32_t max_id = -1;
    for (const auto& [token, id] : spec_.vocab) max_id = std::max(max_id, id);
    for (const AddedToken& token : spec_.added_tokens) max_id = std::max(max_id, token.id);
    const size_t vocab_size = static_cast<size_t>(max_id) + 1;
    token_bytes_.resize(vocab_size);
    is_special_.resize(vocab_size);
    std::vector<bool> used(vocab_size);
    for (const auto& [token, id] : spec_.vocab) {
      if (used[static_cast<size_t>(id)]) {
        return InvalidArgument(where_ + ": id " + std::to_string(id) + " of vocab entry '" + token +
                               "' is used twice");
      }
      used[static_cast<size_t>(id)] = true;
      vocab_ids_.emplace(token, id);
      // Entries outside the byte-level alphabet are control tokens; their text is what they are.
      token_bytes_[static_cast<size_t>(id)] = ByteLevelDecode(token).value_or(token);
    }
    used_ids_ = std::move(used);
    return Status::Ok();
  }

  Status AddAddedTokens() {
    for (const AddedToken& token : spec_.added_tokens) {
      const std::string name = where_ + ": added token '" + token.content + "'";
      const size_t index = static_cast<size_t>(token.id);
      if (!added_ids_.emplace(token.content, token.id).second) {
        return InvalidArgument(name + " is listed twice");
      }
      const auto in_vocab = vocab_ids_.find(token.content);
      if (in_vocab != vocab_ids_.end() && in_vocab->second != token.id) {
        return InvalidArgument(name + " has the id " + std::to_string(token.id) +
                               ", needs its vocab id " + std::to_string(in_vocab->second));
      }
      if (in_vocab == vocab_ids_.end() && used_ids_[index]) {
        return InvalidArgument(name + " has the id " + std::to_string(token.id) +
                               ", which another token uses");
      }
      used_ids_[index] = true;
      token_bytes_[index] = token.content;
      is_special_[index] = token.special;
      (token.normalized ? normalized_tokens_ : raw_tokens_).Add(token.content, token.id);
    }
    return Status::Ok();
  }

  Result<BpeMerger> MakeMerger() const {
    std::array<int32_t, 256> byte_ids;
    for (int byte = 0; byte < 256; ++byte) {
      const std::string character = ByteLevelCharacter(static_cast<uint8_t>(byte));
      const auto found = vocab_ids_.find(character);
      if (found == vocab_ids_.end() || added_ids_.contains(character)) {
        return InvalidArgument(where_ + ": byte " + std::to_string(byte) +
                               " has no token, needs the vocab entry '" + character + "'");
      }
      byte_ids[static_cast<size_t>(byte)] = found->second;
    }
    BpeMerger merger(byte_ids);
    for (size_t i = 0; i < spec_.merges.size(); ++i) {
      const auto& [left, right] = spec_.merges[i];
      const std::string name = where_ + ": merges[" + std::to_string(i) + "]";
      const std::string merged = left + right;
      for (const std::string& token : {left, right, merged}) {
        if (!vocab_ids_.contains(token)) {
          return InvalidArgument(name + " uses '" + token + "', which is not in the vocab");
        }
      }
      // Otherwise plain text could become a control token.
      if (added_ids_.contains(merged)) {
        return Unsupported(name + " makes the added token '" + merged + "'");
      }
      if (!merger.AddMerge(vocab_ids_.at(left), vocab_ids_.at(right), static_cast<int32_t>(i),
                           vocab_ids_.at(merged))) {
        return InvalidArgument(name + " repeats the pair '" + left + "', '" + right + "'");
      }
    }
    return merger;
  }

  // Vocab entries by their bytes, without added tokens: plain text must not become a control token.
  std::unordered_map<std::string, int32_t> WholePieces() const {
    std::unordered_map<std::string, int32_t> whole_pieces;
    if (!spec_.ignore_merges) return whole_pieces;
    for (const auto& [token, id] : spec_.vocab) {
      if (added_ids_.contains(token)) continue;
      std::optional<std::string> bytes = ByteLevelDecode(token);
      if (bytes) whole_pieces.emplace(std::move(*bytes), id);
    }
    return whole_pieces;
  }

  const TokenizerSpec& spec_;
  const std::string& where_;
  std::unordered_map<std::string, int32_t> vocab_ids_;
  std::unordered_map<std::string, int32_t> added_ids_;
  std::vector<bool> used_ids_;
  std::vector<std::string> token_bytes_;
  std::vector<bool> is_special_;
  AddedTokenMatcher raw_tokens_;
  AddedTokenMatcher normalized_tokens_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> ParseBpeTokenizer(const std::string& json,
                                                     const std::string& where) {
  FIRESTEEL_ASSIGN_OR_RETURN(const TokenizerSpec spec, ReadTokenizerJson(json, where));
  return Builder(spec, where).Build();
}

Result<std::unique_ptr<Tokenizer>> LoadBpeTokenizer(const std::string& model_dir) {
  const std::string path = model_dir + "/tokenizer.json";
  std::ifstream stream(path, std::ios::binary);
  if (!stream.is_open()) return NotFound(path + ": cannot be opened");
  const std::string json((std::istreambuf_iterator<char>(stream)),
                         std::istreambuf_iterator<char>());
  if (stream.bad()) return DataLoss(path + ": cannot be read to its end");
  return ParseBpeTokenizer(json, path);
}

}  // namespace firesteel
