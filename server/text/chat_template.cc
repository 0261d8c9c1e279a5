#include "server/text/chat_template.h"

#include "server/text/deepseek_v4_template.h"

namespace firesteel {

Result<std::unique_ptr<ChatTemplate>> CreateChatTemplate(const std::string& architecture,
                                                         const Tokenizer& tokenizer) {
  if (architecture == "DeepseekV4ForCausalLM") return CreateDeepSeekV4Template(tokenizer);
  return Unsupported("architecture '" + architecture +
                     "' has no chat template, needs one of: DeepseekV4ForCausalLM");
}

}  // namespace firesteel
