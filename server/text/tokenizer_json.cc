#include "server/text/tokenizer_json.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>

namespace firesteel {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxTokenId = (int64_t{1} << 24) - 1;
constexpr int kMaxSequenceDepth = 8;

// The pattern that ByteLevel applies with use_regex: contractions, words, numbers, other, spaces.
constexpr char kByteLevelPattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// One JSON object with the name it has in errors.
class Section {
 public:
  Section(const Json& json, std::string name) : json_(json), name_(std::move(name)) {}

  const std::string& name() const { return name_; }

  Status CheckObject() const {
    return json_.is_object() ? Status::Ok() : InvalidArgument(name_ + " is not an object");
  }

  // Refuses keys that the reader does not know.
  Status CheckKeys(std::initializer_list<std::string_view> known) const {
    for (const auto& item : json_.items()) {
      if (std::find(known.begin(), known.end(), item.key()) == known.end()) {
        return Unsupported(name_ + " has the unknown key '" + item.key() + "'");
      }
    }
    return Status::Ok();
  }

  // nullptr when the key is absent or null.
  const Json* Find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  Result<std::string> String(const char* key) const {
    const Json* value = Find(key);
    if (value == nullptr || !value->is_string()) {
      return InvalidArgument(name_ + "." + key + " is missing or not a string");
    }
    return value->get_ref<const std::string&>();
  }

  Result<bool> Bool(const char* key, bool absent) const {
    const Json* value = Find(key);
    if (value == nullptr) return absent;
    if (!value->is_boolean()) return InvalidArgument(name_ + "." + key + " is not a boolean");
    return value->get<bool>();
  }

  // For options that are implemented in one setting only.
  Status RequireBool(const char* key, bool needed, bool absent) const {
    FIRESTEEL_ASSIGN_OR_RETURN(const bool found, Bool(key, absent));
    if (found == needed) return Status::Ok();
    return Unsupported(name_ + "." + key + " is " + (found ? "true" : "false") + ", needs " +
                       (needed ? "true" : "false"));
  }

  // Null, absent or "".
  Status RequireUnset(const char* key) const {
    const Json* value = Find(key);
    if (value == nullptr || (value->is_string() && value->get_ref<const std::string&>().empty())) {
      return Status::Ok();
    }
    return Unsupported(name_ + "." + key + " is set, needs null");
  }

  Result<const Json*> Array(const char* key) const {
    const Json* value = Find(key);
    if (value == nullptr || !value->is_array()) {
      return InvalidArgument(name_ + "." + key + " is missing or not an array");
    }
    return value;
  }

 private:
  const Json& json_;
  std::string name_;
};

std::string ElementName(const std::string& array, size_t index) {
  return array + "[" + std::to_string(index) + "]";
}

Result<int32_t> TokenId(const Json* value, const std::string& name) {
  if (value == nullptr || !value->is_number_integer()) {
    return InvalidArgument(name + ": the id is missing or not an integer");
  }
  const int64_t id =
      value->is_number_unsigned()
          ? static_cast<int64_t>(std::min<uint64_t>(value->get<uint64_t>(), INT64_MAX))
          : value->get<int64_t>();
  if (id < 0 || id > kMaxTokenId) {
    return InvalidArgument(name + ": the id is " + std::to_string(id) + ", needs 0.." +
                           std::to_string(kMaxTokenId));
  }
  return static_cast<int32_t>(id);
}

Result<AddedToken> ReadAddedToken(const Json& json, const std::string& name) {
  const Section section(json, name);
  FIRESTEEL_RETURN_IF_ERROR(section.CheckObject());
  FIRESTEEL_RETURN_IF_ERROR(section.CheckKeys(
      {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
  AddedToken token;
  FIRESTEEL_ASSIGN_OR_RETURN(token.id, TokenId(section.Find("id"), name));
  FIRESTEEL_ASSIGN_OR_RETURN(token.content, section.String("content"));
  if (token.content.empty()) return InvalidArgument(name + ".content is empty");
  for (const char* key : {"single_word", "lstrip", "rstrip"}) {
    FIRESTEEL_RETURN_IF_ERROR(section.RequireBool(key, false, false));
  }
  FIRESTEEL_ASSIGN_OR_RETURN(token.special, section.Bool("special", false));
  FIRESTEEL_ASSIGN_OR_RETURN(token.normalized, section.Bool("normalized", !token.special));
  return token;
}

Status ReadNormalizer(const Json& json, const std::string& name, int depth, TokenizerSpec* spec) {
  const Section section(json, name);
  FIRESTEEL_RETURN_IF_ERROR(section.CheckObject());
  FIRESTEEL_ASSIGN_OR_RETURN(const std::string type, section.String("type"));
  if (type == "NFC") {
    spec->nfc = true;
    return section.CheckKeys({"type"});
  }
  if (type != "Sequence" || depth == kMaxSequenceDepth) {
    return Unsupported(name + ".type is '" + type + "', needs null, NFC or a Sequence of NFC");
  }
  FIRESTEEL_RETURN_IF_ERROR(section.CheckKeys({"type", "normalizers"}));
  FIRESTEEL_ASSIGN_OR_RETURN(const Json* elements, section.Array("normalizers"));
  for (size_t i = 0; i < elements->size(); ++i) {
    FIRESTEEL_RETURN_IF_ERROR(
        ReadNormalizer((*elements)[i], ElementName(name, i), depth + 1, spec));
  }
  return Status::Ok();
}

Result<SplitSpec> ReadSplit(const Section& section) {
  FIRESTEEL_RETURN_IF_ERROR(section.CheckKeys({"type", "pattern", "behavior", "invert"}));
  SplitSpec split;
  split.where = section.name();
  FIRESTEEL_ASSIGN_OR_RETURN(const std::string behavior, section.String("behavior"));
  if (behavior == "Isolated") {
    split.behavior = SplitSpec::Behavior::kIsolated;
  } else if (behavior == "Removed") {
    split.behavior = SplitSpec::Behavior::kRemoved;
  } else if (behavior == "MergedWithPrevious") {
    split.behavior = SplitSpec::Behavior::kMergedWithPrevious;
  } else if (behavior == "MergedWithNext") {
    split.behavior = SplitSpec::Behavior::kMergedWithNext;
  } else {
    return Unsupported(section.name() + ".behavior is '" + behavior +
                       "', needs Isolated, Removed, MergedWithPrevious or MergedWithNext");
  }
  FIRESTEEL_ASSIGN_OR_RETURN(split.invert, section.Bool("invert", false));
  const Json* pattern = section.Find("pattern");
  if (pattern == nullptr || !pattern->is_object() || pattern->size() != 1) {
    return InvalidArgument(section.name() + ".pattern is not an object with one key");
  }
  const Section pattern_section(*pattern, section.name() + ".pattern");
  FIRESTEEL_RETURN_IF_ERROR(pattern_section.CheckKeys({"Regex", "String"}));
  split.literal = pattern_section.Find("String") != nullptr;
  FIRESTEEL_ASSIGN_OR_RETURN(split.pattern,
                             pattern_section.String(split.literal ? "String" : "Regex"));
  return split;
}

// Appends the splits of a pre-tokenizer; `*has_byte_level` tells that ByteLevel was seen, which has
// to be the last.
Status ReadPretokenizer(const Json& json, const std::string& name, int depth, bool* has_byte_level,
                        TokenizerSpec* spec) {
  const Section section(json, name);
  FIRESTEEL_RETURN_IF_ERROR(section.CheckObject());
  FIRESTEEL_ASSIGN_OR_RETURN(const std::string type, section.String("type"));
  if (type == "Sequence" && depth < kMaxSequenceDepth) {
    FIRESTEEL_RETURN_IF_ERROR(section.CheckKeys({"type", "pretokenizers"}));
    FIRESTEEL_ASSIGN_OR_RETURN(const Json* elements, section.Array("pretokenizers"));
    for (size_t i = 0; i < elements->size(); ++i) {
      FIRESTEEL_RETURN_IF_ERROR(
          ReadPretokenizer((*elements)[i], ElementName(name, i), depth + 1, has_byte_level, spec));
    }
    return Status::Ok();
  }
  if (*has_byte_level) return Unsupported(name + " follows ByteLevel, which needs to be the last");
  if (type == "Split") {
    FIRESTEEL_ASSIGN_OR_RETURN(SplitSpec split, ReadSplit(section));
    spec->splits.push_back(std::move(split));
    return Status::Ok();
  }
  if (type != "ByteLevel") {
    return Unsupported(name + ".type is '" + type + "', needs Split, ByteLevel or a Sequence");
  }
  FIRESTEEL_RETURN_IF_ERROR(
      section.CheckKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  FIRESTEEL_RETURN_IF_ERROR(section.RequireBool("add_prefix_space", false, true));
  FIRESTEEL_ASSIGN_OR_RETURN(const bool use_regex, section.Bool("use_regex", true));
  if (use_regex) {
    SplitSpec split;
    split.where = name;
    split.pattern = kByteLevelPattern;
    spec->splits.push_back(std::move(split));
  }
  *has_byte_level = true;
  return Status::Ok();
}

Status ReadVocab(const Section& model, TokenizerSpec* spec) {
  const Json* vocab = model.Find("vocab");
  if (vocab == nullptr || !vocab->is_object()) {
    return InvalidArgument(model.name() + ".vocab is missing or not an object");
  }
  spec->vocab.reserve(vocab->size());
  for (const auto& item : vocab->items()) {
    FIRESTEEL_ASSIGN_OR_RETURN(
        const int32_t id, TokenId(&item.value(), model.name() + ".vocab '" + item.key() + "'"));
    spec->vocab.emplace_back(item.key(), id);
  }
  return Status::Ok();
}

Status ReadMerges(const Section& model, TokenizerSpec* spec) {
  FIRESTEEL_ASSIGN_OR_RETURN(const Json* merges, model.Array("merges"));
  spec->merges.reserve(merges->size());
  for (size_t i = 0; i < merges->size(); ++i) {
    const Json& merge = (*merges)[i];
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      spec->merges.emplace_back(merge[0].get_ref<const std::string&>(),
                                merge[1].get_ref<const std::string&>());
      continue;
    }
    // Older files: one string with a space between the two.
    const std::string text = merge.is_string() ? merge.get_ref<const std::string&>() : "";
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      return InvalidArgument(ElementName(model.name() + ".merges", i) + " is not a pair of tokens");
    }
    spec->merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return Status::Ok();
}

Status ReadModel(const Json& json, const std::string& name, TokenizerSpec* spec) {
  const Section section(json, name);
  FIRESTEEL_RETURN_IF_ERROR(section.CheckObject());
  FIRESTEEL_ASSIGN_OR_RETURN(const std::string type, section.String("type"));
  if (type != "BPE") return Unsupported(name + ".type is '" + type + "', needs BPE");
  FIRESTEEL_RETURN_IF_ERROR(section.CheckKeys(
      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  // unk_token, fuse_unk and byte_fallback have no effect: every byte is required to have a token.
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    FIRESTEEL_RETURN_IF_ERROR(section.RequireUnset(key));
  }
  FIRESTEEL_ASSIGN_OR_RETURN(spec->ignore_merges, section.Bool("ignore_merges", false));
  FIRESTEEL_RETURN_IF_ERROR(ReadVocab(section, spec));
  return ReadMerges(section, spec);
}

// Sections that have to be ByteLevel because the vocabulary is; it has no options that touch ids or
// decoded bytes.
Status RequireByteLevel(const Json* json, const std::string& name) {
  const Section section(*json, name);
  FIRESTEEL_RETURN_IF_ERROR(section.CheckObject());
  FIRESTEEL_ASSIGN_OR_RETURN(const std::string type, section.String("type"));
  if (type == "ByteLevel") return Status::Ok();
  return Unsupported(name + ".type is '" + type + "', needs ByteLevel");
}

Status CheckNfcTokens(const TokenizerSpec& spec, const std::string& where) {
  if (!spec.nfc) return Status::Ok();
  for (const AddedToken& token : spec.added_tokens) {
    if (token.normalized) {
      return Unsupported(where + ": added token '" + token.content +
                         "' has normalized true beside an NFC normalizer, needs false");
    }
  }
  return Status::Ok();
}

}  // namespace

Result<TokenizerSpec> ReadTokenizerJson(const std::string& json, const std::string& where) {
  Json root;
  try {
    root = Json::parse(json);
  } catch (const Json::parse_error& error) {
    return InvalidArgument(where + ": is not valid JSON at byte " +
                           std::to_string(std::min(error.byte, json.size())) + " of " +
                           std::to_string(json.size()));
  } catch (const Json::exception&) {
    return InvalidArgument(where + ": has a number outside the range of JSON readers");
  }
  if (!root.is_object()) return InvalidArgument(where + ": is not a JSON object");
  const Section file(root, where + ":");
  FIRESTEEL_RETURN_IF_ERROR(
      file.CheckKeys({"version", "truncation", "padding", "added_tokens", "normalizer",
                      "pre_tokenizer", "post_processor", "decoder", "model"}));
  FIRESTEEL_RETURN_IF_ERROR(file.RequireUnset("truncation"));
  FIRESTEEL_RETURN_IF_ERROR(file.RequireUnset("padding"));
  TokenizerSpec spec;
  if (file.Find("added_tokens") != nullptr) {
    FIRESTEEL_ASSIGN_OR_RETURN(const Json* tokens, file.Array("added_tokens"));
    for (size_t i = 0; i < tokens->size(); ++i) {
      FIRESTEEL_ASSIGN_OR_RETURN(
          AddedToken token, ReadAddedToken((*tokens)[i], ElementName(where + ": added_tokens", i)));
      spec.added_tokens.push_back(std::move(token));
    }
  }
  if (const Json* normalizer = file.Find("normalizer")) {
    FIRESTEEL_RETURN_IF_ERROR(ReadNormalizer(*normalizer, where + ": normalizer", 0, &spec));
  }
  FIRESTEEL_RETURN_IF_ERROR(CheckNfcTokens(spec, where));
  bool has_byte_level = false;
  if (const Json* pretokenizer = file.Find("pre_tokenizer")) {
    FIRESTEEL_RETURN_IF_ERROR(
        ReadPretokenizer(*pretokenizer, where + ": pre_tokenizer", 0, &has_byte_level, &spec));
  }
  if (!has_byte_level) return Unsupported(where + ": pre_tokenizer has no ByteLevel, needs one");
  if (const Json* post_processor = file.Find("post_processor")) {
    FIRESTEEL_RETURN_IF_ERROR(RequireByteLevel(post_processor, where + ": post_processor"));
  }
  const Json* decoder = file.Find("decoder");
  if (decoder == nullptr) return Unsupported(where + ": decoder is null, needs ByteLevel");
  FIRESTEEL_RETURN_IF_ERROR(RequireByteLevel(decoder, where + ": decoder"));
  const Json* model = file.Find("model");
  if (model == nullptr) return InvalidArgument(where + ": model is missing");
  FIRESTEEL_RETURN_IF_ERROR(ReadModel(*model, where + ": model", &spec));
  return spec;
}

}  // namespace firesteel
