// A parsed body of /v1/completions or /v1/chat/completions: what to generate and how to answer.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "server/openai/api_error.h"
#include "server/openai/json_fields.h"
#include "server/openai/refused_fields.h"
#include "server/stream/generation_call.h"
#include "server/text/chat_template.h"
#include "server/text/tokenizer.h"

namespace firesteel {

// What a parser needs to know of the model. The pointers outlive the parser.
struct ParseContext {
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;  // null: the model has none
  std::string model_name;
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;
};

struct GenerationRequest {
  Route route = Route::kCompletions;
  std::vector<GenerationCall> calls;  // `choices_per_prompt` for each prompt, in order
  int32_t choices_per_prompt = 1;
  bool logprobs = false;         // report them; the calls say how many
  bool prompt_logprobs = false;  // of every prompt token, beside the choices
  bool echo = false;             // the prompt in front of the text, and of the log-probabilities
  bool drop_output =
      false;  // the client wants no output token; the calls make one, the engine's least
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
};

using ParsedRequest = std::variant<GenerationRequest, ApiError>;

ParsedRequest ParseCompletions(const std::string& body, const ParseContext& context);
ParsedRequest ParseChat(const std::string& body, const ParseContext& context);

// Shared with the offline commands ------------------------------------------------------------------------------------

// The token limit, in `least_max_tokens` and above. `fallback_max_tokens` 0 means up to the model length, settled by
// FitToModel.
void ReadTokenLimit(FieldReader* reader, int32_t least_max_tokens, int32_t fallback_max_tokens,
                    GenerationCall* call);

// Everything else that picks tokens, and the stop strings. A seed that is absent is drawn here.
void ReadSampling(FieldReader* reader, const ParseContext& context, GenerationCall* call);

// The ids of a "messages" list; errors go to the reader.
std::vector<int32_t> ReadMessages(FieldReader* reader, const ParseContext& context);

// The ids in `list`, each in the vocabulary; `name` is the field in errors.
std::vector<int32_t> ReadTokenIds(FieldReader* reader, const std::string& name,
                                  const nlohmann::json& list, int32_t vocab_size);

// Limits max_tokens to what the model's length leaves behind the prompt; an error when that is nothing, or less than
// min_tokens.
std::optional<ApiError> FitToModel(const std::string& param, int32_t max_model_len,
                                   GenerationCall* call);

}  // namespace firesteel
