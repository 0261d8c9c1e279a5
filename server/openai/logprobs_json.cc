#include "server/openai/logprobs_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "server/text/utf8.h"

namespace firesteel {

using Json = nlohmann::ordered_json;

namespace {

constexpr float kFloor = -9999.0F;

Json Number(float logprob) { return Json(std::max(logprob, kFloor)); }

// Invalid bytes become U+FFFD here; "bytes" has them as they are.
Json ChatToken(const Tokenizer& tokenizer, int32_t token, float logprob) {
  const std::string bytes = tokenizer.TokenBytes(token, true);
  Json numbers = Json::array();
  for (const char byte : bytes)
    numbers.push_back(static_cast<int>(static_cast<unsigned char>(byte)));
  return {{"token", bytes}, {"logprob", Number(logprob)}, {"bytes", std::move(numbers)}};
}

// Part of a character is written as "bytes:\x..", so that two such tokens stay different keys of one object.
std::string CompletionToken(const Tokenizer& tokenizer, int32_t token) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string bytes = tokenizer.TokenBytes(token, true);
  if (!FindInvalidUtf8(bytes).has_value()) return bytes;
  std::string text = "bytes:";
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text += "\\x";
    text += kDigits[value >> 4];
    text += kDigits[value & 15];
  }
  return text;
}

// A character counts for the token that has its first byte.
int64_t CharacterCount(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(),
                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

class CompletionLists {
 public:
  CompletionLists(const Tokenizer& tokenizer, int64_t* text_offset)
      : tokenizer_(tokenizer), text_offset_(text_offset) {}

  // `in_text`: special tokens are part of the text, as in an echoed prompt.
  void Add(int32_t token, const TokenLogprobs* logprobs, bool in_text) {
    tokens_.push_back(CompletionToken(tokenizer_, token));
    text_offsets_.push_back(*text_offset_);
    *text_offset_ += CharacterCount(tokenizer_.TokenBytes(token, in_text));
    if (logprobs == nullptr) {
      token_logprobs_.push_back(nullptr);
      top_logprobs_.push_back(nullptr);
      return;
    }
    Json top = Json::object();
    for (const TokenLogprob& entry : logprobs->top) {
      top.emplace(CompletionToken(tokenizer_, entry.token), Number(entry.logprob));
    }
    top.emplace(tokens_.back().get_ref<const std::string&>(), Number(logprobs->logprob));
    token_logprobs_.push_back(Number(logprobs->logprob));
    top_logprobs_.push_back(std::move(top));
  }

  Json Take() {
    return {{"tokens", std::move(tokens_)},
            {"token_logprobs", std::move(token_logprobs_)},
            {"top_logprobs", std::move(top_logprobs_)},
            {"text_offset", std::move(text_offsets_)}};
  }

 private:
  const Tokenizer& tokenizer_;
  int64_t* const text_offset_;
  Json tokens_ = Json::array();
  Json token_logprobs_ = Json::array();
  Json top_logprobs_ = Json::array();
  Json text_offsets_ = Json::array();
};

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string ChatLogprobsJson(const Tokenizer& tokenizer, const std::vector<TokenLogprobs>& logprobs,
                             size_t first) {
  Json content = Json::array();
  for (size_t i = first; i < logprobs.size(); ++i) {
    Json top = Json::array();
    for (const TokenLogprob& entry : logprobs[i].top) {
      top.push_back(ChatToken(tokenizer, entry.token, entry.logprob));
    }
    Json token = ChatToken(tokenizer, logprobs[i].token, logprobs[i].logprob);
    token["top_logprobs"] = std::move(top);
    content.push_back(std::move(token));
  }
  return Dump({{"content", std::move(content)}, {"refusal", nullptr}});
}

std::string CompletionLogprobsJson(const Tokenizer& tokenizer, const CompletionLogprobs& reported,
                                   int64_t* text_offset) {
  CompletionLists lists(tokenizer, text_offset);
  if (reported.prompt_ids != nullptr) {
    for (size_t i = 0; i < reported.prompt_ids->size(); ++i) {
      const bool known = i > 0 && i <= reported.prompt_logprobs->size();
      lists.Add((*reported.prompt_ids)[i], known ? &(*reported.prompt_logprobs)[i - 1] : nullptr,
                true);
    }
  }
  if (reported.logprobs != nullptr) {
    for (size_t i = reported.first; i < reported.logprobs->size(); ++i) {
      lists.Add((*reported.logprobs)[i].token, &(*reported.logprobs)[i], false);
    }
  }
  return Dump(lists.Take());
}

std::string PromptLogprobsJson(const Tokenizer& tokenizer,
                               const std::vector<TokenLogprobs>& logprobs) {
  Json list = Json::array({nullptr});
  for (const TokenLogprobs& at : logprobs) {
    Json tokens = Json::object();
    const auto add = [&](int32_t token, float logprob, int32_t rank) {
      tokens[std::to_string(token)] = {{"logprob", Number(logprob)},
                                       {"rank", rank},
                                       {"decoded_token", tokenizer.TokenBytes(token, true)}};
    };
    add(at.token, at.logprob, at.rank);
    for (size_t i = 0; i < at.top.size(); ++i) {
      if (at.top[i].token != at.token) {
        add(at.top[i].token, at.top[i].logprob, static_cast<int32_t>(i) + 1);
      }
    }
    list.push_back(std::move(tokens));
  }
  return list.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace firesteel
