// Chat messages to prompt token ids, by built-in renderers that are selected by name ("deepseek_v4").
//
// A renderer produces segments: control tokens by id and plain bytes. Plain bytes are always encoded with special-token
// matching off, so user text can never become a control token.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "server/text/tokenizer.h"

namespace firesteel {

struct ChatMessage {
  std::string role;  // "system", "developer", "user", "assistant", "tool", "latest_reminder"
  std::string content;
  std::string reasoning;  // assistant only: reasoning_content of an earlier turn
};

struct ChatOptions {
  bool thinking = false;  // false: chat mode, the generation prompt closes the think block
};

class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;
  virtual const std::string& name() const = 0;
  // Prompt ids that end with the generation prompt. InvalidArgument names the message (index, role) at fault.
  virtual Result<std::vector<int32_t>> Render(const std::vector<ChatMessage>& messages,
                                              const ChatOptions& options) const = 0;
};

// `architecture` is config.json's architectures[0], e.g. "DeepseekV4ForCausalLM". Unsupported names what is known;
// NotFound names a control token that the tokenizer lacks. `tokenizer` must outlive the template.
Result<std::unique_ptr<ChatTemplate>> CreateChatTemplate(const std::string& architecture,
                                                         const Tokenizer& tokenizer);

}  // namespace firesteel
