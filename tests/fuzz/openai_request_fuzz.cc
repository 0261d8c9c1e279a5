// Fuzz target of the request parsers: any body gives an error with a 4xx status or calls that the engine would accept.
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "kernels/core/check.h"
#include "tests/server/openai/openai_fixture.h"

namespace {

void Check(const firesteel::ParsedRequest& parsed, const firesteel::ParseContext& context) {
  if (const auto* error = std::get_if<firesteel::ApiError>(&parsed)) {
    FIRESTEEL_CHECK(error->status >= 400 && error->status < 500,
                    "a body is not the server's fault");
    FIRESTEEL_CHECK(!firesteel::ErrorJson(*error).empty(), "every error has a body");
    return;
  }
  const auto& request = std::get<firesteel::GenerationRequest>(parsed);
  FIRESTEEL_CHECK(!request.calls.empty(), "an accepted body asks for something");
  for (const firesteel::GenerationCall& call : request.calls) {
    FIRESTEEL_CHECK(call.sampling.Validate().ok(), "sampling is validated");
    FIRESTEEL_CHECK(!call.prompt_ids.empty(), "a prompt has tokens");
    const int64_t positions =
        static_cast<int64_t>(call.prompt_ids.size()) + call.sampling.max_tokens;
    FIRESTEEL_CHECK(positions <= context.max_model_len, "prompt and output fit the model");
    for (const int32_t id : call.prompt_ids) {
      FIRESTEEL_CHECK(id >= 0 && id < context.vocab_size, "ids are in the vocabulary");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t byte_count) {
  const firesteel::TableTokenizer tokenizer({"", "a", "b", " ", "1"});
  const firesteel::PlainChatTemplate chat_template(&tokenizer);
  firesteel::ParseContext context;
  context.tokenizer = &tokenizer;
  context.chat_template = &chat_template;
  context.model_name = "toy";
  context.vocab_size = tokenizer.vocab_size();
  context.max_model_len = 64;
  const std::string body(reinterpret_cast<const char*>(bytes), byte_count);
  Check(firesteel::ParseCompletions(body, context), context);
  Check(firesteel::ParseChat(body, context), context);
  return 0;
}
