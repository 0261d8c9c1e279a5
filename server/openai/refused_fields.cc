#include "server/openai/refused_fields.h"

#include <nlohmann/json.hpp>
#include <string>

namespace firesteel {

using Json = nlohmann::json;

namespace {

bool Never(const Json&) { return false; }
bool IsFalse(const Json& value) { return value == false; }
bool IsTrue(const Json& value) { return value == true; }
bool IsZero(const Json& value) { return value.is_number() && value == 0; }
bool IsOne(const Json& value) { return value.is_number() && value == 1; }
bool IsEmpty(const Json& value) {
  return (value.is_structured() || value.is_string()) && value.empty();
}
bool IsBlank(const Json& value) {
  return value.is_string() && value.get_ref<const std::string&>().empty();
}
bool IsTextFormat(const Json& value) {
  return value.is_object() && value.value("type", Json()) == "text";
}
bool IsNoTool(const Json& value) { return value == "none" || value == "auto"; }
bool IsNone(const Json& value) { return value == "none"; }
bool IsMedium(const Json& value) { return value == "medium"; }
bool IsTextOnly(const Json& value) { return value == Json::array({"text"}); }
bool IsOptionalTrueOrFalse(const Json& value) { return value.is_boolean(); }

// "thinking": false or {"type":"disabled"}.
bool IsDisabled(const Json& value) { return value == false || value == Json{{"type", "disabled"}}; }

// The chat renderer has one switch, and it is off: the answer starts behind a closed think block.
bool IsThinkingOff(const Json& value) {
  if (!value.is_object()) return false;
  for (const auto& item : value.items()) {
    if ((item.key() != "thinking" && item.key() != "enable_thinking") || item.value() != false)
      return false;
  }
  return true;
}

struct RefusedField {
  const char* name;
  bool (*neutral)(const Json&);
  const char* neutral_text;
};

constexpr RefusedField kEveryRoute[] = {
    {"length_penalty", IsOne, "1"},
    {"typical_p", IsOne, "1"},
    {"use_beam_search", IsFalse, "false"},
    {"allowed_token_ids", IsEmpty, "[]"},
    {"stop_regex", IsEmpty, "[]"},
    {"include_stop_str_in_output", IsFalse, "false"},
    {"skip_special_tokens", IsTrue, "true"},
    {"add_special_tokens", IsOptionalTrueOrFalse, "true or false"},
    {"truncate_prompt_tokens", Never, "null"},
    {"return_token_ids", IsFalse, "false"},
    {"return_tokens_as_token_ids", IsFalse, "false"},
    {"logits_processors", IsEmpty, "[]"},
    {"response_format", IsTextFormat, "{\"type\":\"text\"}"},
    {"structured_outputs", Never, "null"},
    {"guided_json", Never, "null"},
    {"guided_regex", Never, "null"},
    {"guided_choice", Never, "null"},
    {"guided_grammar", Never, "null"},
    {"guided_decoding_backend", Never, "null"},
    {"grammar", IsBlank, "\"\""},
    {"json_schema", Never, "null"},
    {"regex", Never, "null"},
    {"ebnf", Never, "null"},
    {"lora_path", Never, "null"},
    {"bad_words_ids", IsEmpty, "[]"},
    {"cache_salt", IsBlank, "\"\" (all requests share the prefix cache)"},
    {"detokenize", IsTrue, "true"},
    {"enable_thinking", IsFalse, "false"},
    {"guidance_scale", IsOne, "1"},
    {"max_new_tokens", Never, "null (the limit is max_tokens)"},
    {"max_output_tokens", Never, "null (the limit is max_tokens)"},
    {"n_predict", Never, "null (the limit is max_tokens)"},
    {"n_probs", IsZero, "0"},
    {"no_stop_trim", IsFalse, "false"},
    {"reasoning", IsEmpty, "{}"},
    {"repeat_penalty", IsOne, "1"},
    {"samplers", IsEmpty, "[]"},
    {"stop_sequences", IsEmpty, "[] (the field is stop)"},
    {"structural_tag", Never, "null"},
    {"tfs_z", IsOne, "1"},
    {"thinking", IsDisabled, "false"},
    {"top_a", IsZero, "0"},
    {"typical", IsOne, "1"},
    // The switch of each of these samplers. Their other fields do nothing while the switch is off.
    {"dry_multiplier", IsZero, "0"},
    {"mirostat", IsZero, "0"},
    {"mirostat_mode", IsZero, "0"},
    {"xtc_probability", IsZero, "0"},
};

constexpr RefusedField kCompletionsOnly[] = {
    {"suffix", IsBlank, "\"\""},
    {"prompt_embeds", Never, "null"},
};

constexpr RefusedField kOfflineOnly[] = {
    {"n", IsOne, "1"},
    {"best_of", IsOne, "1"},
    {"logprobs", IsFalse, "false"},
    {"echo", IsFalse, "false"},
    {"suffix", IsBlank, "\"\""},
    {"prompt_embeds", Never, "null"},
    {"prompt_logprobs", Never, "null"},
};

constexpr RefusedField kChatOnly[] = {
    {"tools", IsEmpty, "[]"},
    {"tool_choice", IsNoTool, "\"none\" or \"auto\""},
    {"functions", IsEmpty, "[]"},
    {"function_call", IsNoTool, "\"none\" or \"auto\""},
    {"modalities", IsTextOnly, "[\"text\"]"},
    {"audio", Never, "null"},
    {"web_search_options", Never, "null"},
    {"verbosity", IsMedium, "\"medium\""},
    {"reasoning_effort", IsNone, "\"none\""},
    {"chat_template", Never, "null"},
    {"chat_template_kwargs", IsThinkingOff, "{\"thinking\":false}"},
    {"add_generation_prompt", IsTrue, "true"},
    {"continue_final_message", IsFalse, "false"},
    {"echo", IsFalse, "false"},
    {"documents", IsEmpty, "[]"},
};

template <size_t n>
void Check(const RefusedField (&fields)[n], FieldReader* reader) {
  for (const RefusedField& field : fields) {
    const Json* value = reader->Find(field.name);
    if (value == nullptr || field.neutral(*value)) continue;
    reader->Fail(field.name, std::string(field.name) + " is " + DescribeJson(*value) +
                                 ", which this server does not support; it accepts null or " +
                                 field.neutral_text);
  }
}

}  // namespace

void CheckRefusedFields(Route route, FieldReader* reader) {
  Check(kEveryRoute, reader);
  switch (route) {
    case Route::kCompletions: return Check(kCompletionsOnly, reader);
    case Route::kChat: return Check(kChatOnly, reader);
    case Route::kOfflineLine: return Check(kOfflineOnly, reader);
  }
}

}  // namespace firesteel
