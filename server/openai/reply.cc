#include "server/openai/reply.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "server/openai/logprobs_json.h"

namespace firesteel {

using Json = nlohmann::json;

namespace {

std::string Quoted(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

constexpr char kNull[] = "null";

const char* FinishName(FinishReason reason) {
  return reason == FinishReason::kLength ? "length" : "stop";
}

bool Failed(FinishReason reason) {
  return reason == FinishReason::kError || reason == FinishReason::kAborted;
}

}  // namespace

class Reply::ChoiceStream : public ResponseStream {
 public:
  ChoiceStream(std::shared_ptr<Reply> reply, size_t choice)
      : reply_(std::move(reply)), choice_(choice) {}
  bool OnText(std::string_view text, const GenerationResult& so_far) override {
    return reply_->OnText(choice_, text, so_far);
  }
  void OnFinish(GenerationResult result) override { reply_->OnFinish(choice_, std::move(result)); }

 private:
  const std::shared_ptr<Reply> reply_;  // shared with the streams of the other choices
  const size_t choice_;
};

Reply::Reply(ReplyOptions options, const Tokenizer* tokenizer, size_t choices,
             std::shared_ptr<ResponseWriter> writer)
    : options_(std::move(options)),
      tokenizer_(tokenizer),
      writer_(std::move(writer)),
      choices_(choices) {
  const bool chat = options_.route == Route::kChat;
  chunk_head_ = "data: {\"id\":" + Quoted(options_.id) + ",\"object\":\"" +
                (chat ? "chat.completion.chunk" : "text_completion") +
                "\",\"created\":" + std::to_string(options_.created) +
                ",\"model\":" + Quoted(options_.model) + ",\"choices\":[";
}

std::unique_ptr<ResponseStream> Reply::StreamFor(size_t choice) {
  return std::make_unique<ChoiceStream>(shared_from_this(), choice);
}

void Reply::Begin() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!options_.stream) return;
  writer_->StartStream({"text/event-stream; charset=utf-8",
                        {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}},
                        ": keep-alive\n\n"});
  if (closed_) return;
  for (size_t i = 0; i < choices_.size(); ++i) WriteRole(i);
}

void Reply::Refuse(const ApiError& error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  writer_->Send(ErrorResponse(error));
}

bool Reply::WriteRole(size_t choice) {
  if (options_.route != Route::kChat || choices_[choice].start_sent) return true;
  choices_[choice].start_sent = true;
  return WriteChunk(choice, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}", kNull, nullptr);
}

bool Reply::WriteEcho(size_t choice, const GenerationResult& so_far) {
  if (options_.echoed_prompts.empty() || choices_[choice].start_sent) return true;
  choices_[choice].start_sent = true;
  const std::string text = tokenizer_->Decode(options_.echoed_prompts[choice], true);
  return WriteChunk(choice, "\"text\":" + Quoted(text), EchoLogprobs(choice, so_far), nullptr);
}

std::string Reply::EchoLogprobs(size_t choice, const GenerationResult& so_far) {
  if (!options_.logprobs) return kNull;
  CompletionLogprobs part;
  part.prompt_ids = &options_.echoed_prompts[choice];
  part.prompt_logprobs = &so_far.prompt_logprobs;
  return CompletionLogprobsJson(*tokenizer_, part, &choices_[choice].text_offset);
}

std::string Reply::NewLogprobs(size_t choice, const GenerationResult& so_far) {
  Choice& state = choices_[choice];
  const size_t first = std::exchange(state.logprobs_sent, so_far.logprobs.size());
  if (!options_.logprobs || first == so_far.logprobs.size()) return kNull;
  if (options_.route == Route::kChat) {
    return ChatLogprobsJson(*tokenizer_, so_far.logprobs, first);
  }
  CompletionLogprobs part;
  part.logprobs = &so_far.logprobs;
  part.first = first;
  return CompletionLogprobsJson(*tokenizer_, part, &state.text_offset);
}

bool Reply::WriteChunk(size_t choice, const std::string& payload, const std::string& logprobs,
                       const char* finish_reason) {
  std::string chunk = chunk_head_ + "{\"index\":" + std::to_string(choice) + "," + payload +
                      ",\"logprobs\":" + logprobs + ",\"finish_reason\":";
  chunk += finish_reason == nullptr ? std::string("null") : Quoted(finish_reason);
  chunk += "}]";
  if (options_.continuous_usage) {
    chunk += ",\"usage\":" + UsageJson();
  } else if (options_.include_usage) {
    chunk += ",\"usage\":null";
  }
  chunk += "}\n\n";
  return writer_->Write(chunk);
}

bool Reply::OnText(size_t choice, std::string_view text, const GenerationResult& so_far) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return false;
  if (options_.drop_output) return true;
  choices_[choice].tokens = static_cast<int64_t>(so_far.output_ids.size());
  if (!options_.stream) return true;
  if (!WriteRole(choice) || !WriteEcho(choice, so_far)) return false;
  const bool chat = options_.route == Route::kChat;
  const std::string payload =
      chat ? "\"delta\":{\"content\":" + Quoted(text) + "}" : "\"text\":" + Quoted(text);
  return WriteChunk(choice, payload, NewLogprobs(choice, so_far), nullptr);
}

void Reply::OnFinish(size_t choice, GenerationResult result) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return;
  if (Failed(result.finish)) {
    Status why = result.error;
    if (why.ok()) why = Unavailable("the generation was aborted");
    return Fail(EngineError(why));
  }
  if (options_.drop_output) {
    result.finish = FinishReason::kLength;
    result.text.clear();
    result.output_ids.clear();
    result.logprobs.clear();
  }
  Choice& state = choices_[choice];
  state.tokens = static_cast<int64_t>(result.output_ids.size());
  state.finished = true;
  state.result = std::move(result);
  ++finished_;
  if (options_.stream) {
    WriteRole(choice);
    WriteEcho(choice, state.result);
    const bool chat = options_.route == Route::kChat;
    WriteChunk(choice, chat ? "\"delta\":{}" : "\"text\":\"\"", NewLogprobs(choice, state.result),
               FinishName(state.result.finish));
  }
  if (finished_ < choices_.size()) return;
  closed_ = true;
  if (options_.stream) {
    FinishStream();
  } else {
    SendBody();
  }
}

void Reply::FinishStream() {
  if (options_.include_usage) writer_->Write(chunk_head_ + "],\"usage\":" + UsageJson() + "}\n\n");
  writer_->Write("data: [DONE]\n\n");
  writer_->End();
}

void Reply::Fail(const ApiError& error) {
  closed_ = true;
  if (!options_.stream) return writer_->Send(ErrorResponse(error));
  writer_->Write("data: " + ErrorJson(error) + "\n\n");
  writer_->Write("data: [DONE]\n\n");
  writer_->End();
}

std::string Reply::UsageJson() const {
  const int64_t prompt = options_.prompt_tokens;
  int64_t completion = 0;
  for (const Choice& choice : choices_) completion += choice.tokens;
  return "{\"prompt_tokens\":" + std::to_string(prompt) +
         ",\"completion_tokens\":" + std::to_string(completion) +
         ",\"total_tokens\":" + std::to_string(prompt + completion) + "}";
}

std::string Reply::BodyLogprobs(size_t choice) {
  if (!options_.logprobs) return kNull;
  const GenerationResult& result = choices_[choice].result;
  if (options_.route == Route::kChat) return ChatLogprobsJson(*tokenizer_, result.logprobs, 0);
  CompletionLogprobs whole;
  if (!options_.echoed_prompts.empty()) {
    whole.prompt_ids = &options_.echoed_prompts[choice];
    whole.prompt_logprobs = &result.prompt_logprobs;
  }
  whole.logprobs = &result.logprobs;
  return CompletionLogprobsJson(*tokenizer_, whole, &choices_[choice].text_offset);
}

void Reply::SendBody() {
  const bool chat = options_.route == Route::kChat;
  std::string body = "{\"id\":" + Quoted(options_.id) + ",\"object\":\"" +
                     (chat ? "chat.completion" : "text_completion") +
                     "\",\"created\":" + std::to_string(options_.created) +
                     ",\"model\":" + Quoted(options_.model) + ",\"choices\":[";
  for (size_t i = 0; i < choices_.size(); ++i) {
    const GenerationResult& result = choices_[i].result;
    const bool echo = !options_.echoed_prompts.empty();
    const std::string prompt =
        echo ? tokenizer_->Decode(options_.echoed_prompts[i], true) : std::string();
    const std::string text = Quoted(prompt + result.text);
    body += (i == 0 ? "{\"index\":" : ",{\"index\":") + std::to_string(i) + ",";
    body +=
        chat ? "\"message\":{\"role\":\"assistant\",\"content\":" + text + "}" : "\"text\":" + text;
    body += ",\"logprobs\":" + BodyLogprobs(i);
    if (options_.prompt_logprobs && !chat) {
      body += ",\"prompt_logprobs\":" + PromptLogprobsJson(*tokenizer_, result.prompt_logprobs);
    }
    body += ",\"finish_reason\":\"" + std::string(FinishName(result.finish)) + "\"}";
  }
  body += "],\"usage\":" + UsageJson();
  if (options_.prompt_logprobs && chat) {  // every choice has the same prompt
    body += ",\"prompt_logprobs\":" +
            PromptLogprobsJson(*tokenizer_, choices_.front().result.prompt_logprobs);
  }
  body += "}";
  HttpResponse response;
  response.body = std::move(body);
  writer_->Send(std::move(response));
}

}  // namespace firesteel
