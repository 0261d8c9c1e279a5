#include "server/text/deepseek_v4_template.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "server/text/utf8.h"

namespace firesteel {
namespace {

constexpr char kBeginOfSentence[] = "<｜begin▁of▁sentence｜>";
constexpr char kEndOfSentence[] = "<｜end▁of▁sentence｜>";
constexpr char kUser[] = "<｜User｜>";
constexpr char kAssistant[] = "<｜Assistant｜>";
constexpr char kThinkBegin[] = "<think>";
constexpr char kThinkEnd[] = "</think>";
constexpr char kLatestReminder[] = "<｜latest_reminder｜>";
constexpr const char* kAlwaysNeeded[] = {kBeginOfSentence, kEndOfSentence, kUser, kAssistant,
                                         kThinkEnd};

// A tool's result is plain text inside a user turn.
constexpr char kToolResultBegin[] = "<tool_result>";
constexpr char kToolResultEnd[] = "</tool_result>";
constexpr char kBlockSeparator[] = "\n\n";

enum class Role { kSystem, kDeveloper, kUser, kAssistant, kTool, kLatestReminder };

constexpr std::pair<std::string_view, Role> kRoles[] = {
    {"system", Role::kSystem}, {"developer", Role::kDeveloper},
    {"user", Role::kUser},     {"assistant", Role::kAssistant},
    {"tool", Role::kTool},     {"latest_reminder", Role::kLatestReminder},
};

std::optional<Role> FindRole(std::string_view name) {
  for (const auto& [role_name, role] : kRoles) {
    if (name == role_name) return role;
  }
  return std::nullopt;
}

// A message after merging: tool results are part of user turns. There is no reasoning: without
// tools the format shows only what was thought after the last question, and that question is still
// to be answered.
struct Turn {
  Role role;
  std::string content;
};

bool AsksForAnswer(Role role) { return role == Role::kUser || role == Role::kDeveloper; }

std::string MessageName(size_t index, const ChatMessage& message) {
  return "message " + std::to_string(index) + " (role '" + message.role + "')";
}

Status CheckText(const std::string& name, const char* field, const std::string& text) {
  const std::optional<size_t> invalid = FindInvalidUtf8(text);
  if (!invalid) return Status::Ok();
  return InvalidArgument(name + ": " + field + " is not valid UTF-8 at byte " +
                         std::to_string(*invalid));
}

Result<std::vector<Turn>> MergeMessages(const std::vector<ChatMessage>& messages) {
  if (messages.empty()) return InvalidArgument("there are no messages, needs at least one");
  std::vector<Turn> turns;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const std::optional<Role> role = FindRole(message.role);
    if (!role) {
      const std::optional<size_t> invalid = FindInvalidUtf8(message.role);
      return InvalidArgument(
          "message " + std::to_string(i) + " has the role '" +
          (invalid ? message.role.substr(0, *invalid) : message.role) +
          "', needs system, developer, user, assistant, tool or latest_reminder");
    }
    const std::string name = MessageName(i, message);
    FIRESTEEL_RETURN_IF_ERROR(CheckText(name, "content", message.content));
    FIRESTEEL_RETURN_IF_ERROR(CheckText(name, "reasoning", message.reasoning));
    if (*role == Role::kDeveloper && message.content.empty()) {
      return InvalidArgument(name + ": content is empty, needs text");
    }
    if (*role != Role::kUser && *role != Role::kTool) {
      turns.push_back({*role, message.content});
      continue;
    }
    const std::string block = *role == Role::kTool
                                  ? kToolResultBegin + message.content + kToolResultEnd
                                  : message.content;
    if (!turns.empty() && turns.back().role == Role::kUser) {
      turns.back().content += kBlockSeparator + block;
    } else {
      turns.push_back({Role::kUser, block});
    }
  }
  if (!AsksForAnswer(turns.back().role)) {
    return InvalidArgument(MessageName(messages.size() - 1, messages.back()) +
                           " is the last one, needs a user, tool or developer message to answer");
  }
  return turns;
}

// Thinking mode: what a developer said before the last turn is not shown again.
std::vector<Turn> DropEarlierDeveloperTurns(std::vector<Turn> turns) {
  std::vector<Turn> kept;
  for (size_t i = 0; i < turns.size(); ++i) {
    const bool is_last = i + 1 == turns.size();
    if (is_last || turns[i].role != Role::kDeveloper) kept.push_back(std::move(turns[i]));
  }
  return kept;
}

class SegmentWriter {
 public:
  void Control(const char* token) { segments_.push_back({true, token}); }
  void Plain(const std::string& text) {
    if (text.empty()) return;
    if (segments_.empty() || segments_.back().is_control) segments_.push_back({false, ""});
    segments_.back().text += text;
  }
  std::vector<ChatSegment> Take() && { return std::move(segments_); }

 private:
  std::vector<ChatSegment> segments_;
};

void WriteTurn(const Turn& turn, SegmentWriter* writer) {
  switch (turn.role) {
    case Role::kSystem: writer->Plain(turn.content); return;
    case Role::kTool:  // merged into a user turn
    case Role::kDeveloper:
    case Role::kUser:
      writer->Control(kUser);
      writer->Plain(turn.content);
      return;
    case Role::kLatestReminder:
      writer->Control(kLatestReminder);
      writer->Plain(turn.content);
      return;
    case Role::kAssistant:
      writer->Plain(turn.content);
      writer->Control(kEndOfSentence);
      return;
  }
}

class DeepSeekV4Template final : public ChatTemplate {
 public:
  explicit DeepSeekV4Template(const Tokenizer& tokenizer)
      : tokenizer_(tokenizer), name_("deepseek_v4") {}

  const std::string& name() const override { return name_; }

  Result<std::vector<int32_t>> Render(const std::vector<ChatMessage>& messages,
                                      const ChatOptions& options) const override {
    FIRESTEEL_ASSIGN_OR_RETURN(const std::vector<ChatSegment> segments,
                               RenderDeepSeekV4Segments(messages, options));
    std::vector<int32_t> ids;
    for (const ChatSegment& segment : segments) {
      if (segment.is_control) {
        const int32_t id = tokenizer_.SpecialTokenId(segment.text);
        if (id < 0) {
          return NotFound("chat template deepseek_v4: the tokenizer has no token '" + segment.text +
                          "', which this prompt needs");
        }
        ids.push_back(id);
        continue;
      }
      FIRESTEEL_ASSIGN_OR_RETURN(const std::vector<int32_t> plain,
                                 tokenizer_.EncodePlain(segment.text));
      ids.insert(ids.end(), plain.begin(), plain.end());
    }
    return ids;
  }

 private:
  const Tokenizer& tokenizer_;
  const std::string name_;
};

}  // namespace

Result<std::vector<ChatSegment>> RenderDeepSeekV4Segments(const std::vector<ChatMessage>& messages,
                                                          const ChatOptions& options) {
  FIRESTEEL_ASSIGN_OR_RETURN(std::vector<Turn> turns, MergeMessages(messages));
  if (options.thinking) turns = DropEarlierDeveloperTurns(std::move(turns));
  SegmentWriter writer;
  writer.Control(kBeginOfSentence);
  for (size_t i = 0; i < turns.size(); ++i) {
    WriteTurn(turns[i], &writer);
    const bool is_last = i + 1 == turns.size();
    const bool answer_follows = is_last || turns[i + 1].role == Role::kAssistant ||
                                turns[i + 1].role == Role::kLatestReminder;
    if (!AsksForAnswer(turns[i].role) || !answer_follows) continue;
    writer.Control(kAssistant);
    writer.Control(options.thinking && is_last ? kThinkBegin : kThinkEnd);
  }
  return std::move(writer).Take();
}

Result<std::unique_ptr<ChatTemplate>> CreateDeepSeekV4Template(const Tokenizer& tokenizer) {
  for (const char* token : kAlwaysNeeded) {
    if (tokenizer.SpecialTokenId(token) < 0) {
      return NotFound(std::string("chat template deepseek_v4: the tokenizer has no token '") +
                      token + "'");
    }
  }
  return std::unique_ptr<ChatTemplate>(std::make_unique<DeepSeekV4Template>(tokenizer));
}

}  // namespace firesteel
