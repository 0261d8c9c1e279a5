// The lines that `generate` and `eval` read and write.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "server/openai/generation_request.h"
#include "server/stream/response_stream.h"

namespace firesteel {

struct InputLine {
  GenerationCall call;
  std::optional<std::vector<int32_t>> expected_ids;  // from "expected_ids" or "output_ids"
};

// One input line: a JSON object with "prompt_ids", "messages" or "prompt" (the first present counts) and, optionally,
// stop and the sampling fields of the completions route, without n, logprobs and echo. `defaults` fills what the line
// leaves out. The error names the field.
Result<InputLine> ParseInputLine(const std::string& line, const ParseContext& context,
                                 const SamplingParams& defaults);

// Without a line end. `match` is written when it is known (eval with expected ids).
std::string FormatOutputLine(int64_t index, const GenerationResult& result,
                             std::optional<bool> match);
std::string FormatErrorLine(int64_t index, const std::string& message);

}  // namespace firesteel
