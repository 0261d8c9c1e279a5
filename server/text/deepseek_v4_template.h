// DeepSeek-V4's chat format, text conversations without tools. Pure functions and an immutable template; any thread.
//
// The format has no system role token: system text follows the text before it. A turn of the user is everything the
// user and tools said in a row. Reasoning of earlier turns is never shown; in thinking mode developer messages before
// the last turn are dropped too. A conversation has to end with a turn that asks for an answer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "server/text/chat_template.h"
#include "server/text/tokenizer.h"

namespace firesteel {

struct ChatSegment {
  bool is_control = false;
  std::string text;  // a control token's content, or plain bytes (not empty)
};

// InvalidArgument names the message at fault. No two plain segments are adjacent.
Result<std::vector<ChatSegment>> RenderDeepSeekV4Segments(const std::vector<ChatMessage>& messages,
                                                          const ChatOptions& options);

// NotFound names a control token that every prompt needs and `tokenizer` lacks. Tokens that only some prompts need
// (thinking, reminders) are looked up by Render. `tokenizer` must outlive the template.
Result<std::unique_ptr<ChatTemplate>> CreateDeepSeekV4Template(const Tokenizer& tokenizer);

}  // namespace firesteel
