#include "server/cli/json_lines.h"

#include <nlohmann/json.hpp>

namespace firesteel {

using Json = nlohmann::json;

namespace {

std::vector<int32_t> ReadPrompt(FieldReader* reader, const ParseContext& context,
                                std::string* param) {
  if (const Json* ids = reader->Find("prompt_ids")) {
    *param = "prompt_ids";
    if (ids->is_array()) return ReadTokenIds(reader, *param, *ids, context.vocab_size);
    reader->FailValue(*param, *ids, "a list of token ids");
    return {};
  }
  if (reader->Find("messages") != nullptr) {
    *param = "messages";
    return ReadMessages(reader, context);
  }
  *param = "prompt";
  std::string text;
  reader->ReadString(*param, &text);
  if (reader->Find(*param) == nullptr)
    reader->Fail(*param, "prompt_ids, messages or prompt is missing");
  if (!reader->ok()) return {};
  Result<std::vector<int32_t>> ids = context.tokenizer->EncodePlain(text);
  if (ids.ok()) return std::move(ids).value();
  reader->Fail(*param, ids.status().message());
  return {};
}

Json Finish(const GenerationResult& result) {
  switch (result.finish) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    default: return nullptr;
  }
}

std::string Dump(const nlohmann::ordered_json& line) {
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

Result<InputLine> ParseInputLine(const std::string& line, const ParseContext& context,
                                 const SamplingParams& defaults) {
  FIRESTEEL_ASSIGN_OR_RETURN(const std::unique_ptr<Json> json, ParseJson(line));
  if (!json->is_object()) {
    return InvalidArgument("the line is " + DescribeJson(*json) + ", needs a JSON object");
  }
  FieldReader reader(*json);
  InputLine parsed;
  parsed.call.sampling = defaults;
  CheckRefusedFields(Route::kOfflineLine, &reader);
  ReadTokenLimit(&reader, 1, defaults.max_tokens, &parsed.call);
  ReadSampling(&reader, context, &parsed.call);
  if (reader.Find("seed") == nullptr) parsed.call.sampling.seed = defaults.seed;
  std::string param;
  parsed.call.prompt_ids = ReadPrompt(&reader, context, &param);
  for (const char* name : {"expected_ids", "output_ids"}) {
    const Json* ids = reader.Find(name);
    if (ids == nullptr || parsed.expected_ids.has_value()) continue;
    if (!ids->is_array()) {
      reader.FailValue(name, *ids, "a list of token ids");
    } else {
      parsed.expected_ids = ReadTokenIds(&reader, name, *ids, context.vocab_size);
    }
  }
  if (!reader.ok()) return InvalidArgument(reader.error().message);
  if (const auto error = FitToModel(param, context.max_model_len, &parsed.call)) {
    return InvalidArgument(error->message);
  }
  return parsed;
}

std::string FormatOutputLine(int64_t index, const GenerationResult& result,
                             std::optional<bool> match) {
  nlohmann::ordered_json line = {{"index", index},
                                 {"output_ids", result.output_ids},
                                 {"text", result.text},
                                 {"finish_reason", Finish(result)},
                                 {"accepted_per_step", result.accepted_per_step}};
  if (match.has_value()) line["match"] = *match;
  return Dump(line);
}

std::string FormatErrorLine(int64_t index, const std::string& message) {
  return Dump({{"index", index}, {"error", message}});
}

}  // namespace firesteel
