// The OpenAI routes over a scripted engine, called without sockets: what went in, what the writer was told.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/openai/openai_service.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/table_tokenizer.h"

namespace firesteel {

// Renders each message as its content's ids; enough to see that the messages arrive.
class PlainChatTemplate : public ChatTemplate {
 public:
  explicit PlainChatTemplate(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}
  const std::string& name() const override { return name_; }
  Result<std::vector<int32_t>> Render(const std::vector<ChatMessage>& messages,
                                      const ChatOptions&) const override {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role != "user" && messages[i].role != "assistant") {
        return InvalidArgument("messages[" + std::to_string(i) + "] has the role '" +
                               messages[i].role + "'");
      }
      FIRESTEEL_ASSIGN_OR_RETURN(const std::vector<int32_t> part,
                                 tokenizer_->EncodePlain(messages[i].content));
      ids.insert(ids.end(), part.begin(), part.end());
    }
    return ids;
  }

 private:
  const Tokenizer* tokenizer_;
  std::string name_ = "plain";
};

class RecordingWriter : public ResponseWriter {
 public:
  void Send(HttpResponse sent) override {
    const std::lock_guard<std::mutex> lock(mutex);
    response = std::move(sent);
    done = true;
    changed.notify_all();
  }
  void StartStream(StreamStart start) override {
    const std::lock_guard<std::mutex> lock(mutex);
    stream_type = start.content_type;
    started = true;
    if (ended) done = true;
    changed.notify_all();
  }
  bool Write(std::string_view piece) override {
    const std::lock_guard<std::mutex> lock(mutex);
    stream += piece;
    return takes;
  }
  void End() override {
    const std::lock_guard<std::mutex> lock(mutex);
    ended = true;
    if (started) done = true;
    changed.notify_all();
  }
  void OnDisconnect(std::function<void()> callback) override {
    const std::lock_guard<std::mutex> lock(mutex);
    on_disconnect = std::move(callback);
  }
  bool WaitDone() {
    std::unique_lock<std::mutex> lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(2), [this] { return done; });
  }

  std::mutex mutex;
  std::condition_variable changed;
  HttpResponse response;
  std::string stream_type;
  std::string stream;
  std::function<void()> on_disconnect;
  bool takes = true;
  bool started = false;
  bool ended = false;
  bool done = false;
};

// Prompt step "a", then a round that accepts two of five: "b", "c" and the end token.
inline std::vector<TokenEvent> ScriptAbc(const Request&) {
  return {ScriptedEvent({1}, false, 0), ScriptedEvent({2, 3, 0}, true, 2, FinishReason::kStop)};
}

struct OpenAiFixture {
  explicit OpenAiFixture(ScriptedEngine::Script script = ScriptAbc)
      : tokenizer({"", "a", "b", "c", "EN", "D", "\xF0\x9F", "\x98\x80", " ", " EN"}),
        chat_template(&tokenizer),
        engine(Info(), std::move(script)),
        output(&engine, &tokenizer),
        service({"toy", "1.2.3"}, &engine, &tokenizer, &chat_template, &output),
        router(OpenAiService::FormatError) {
    service.AddRoutes(&router);
  }
  static ModelInfo Info() {
    ModelInfo info = ScriptedModelInfo();
    info.vocab_size = 10;
    return info;
  }

  std::shared_ptr<RecordingWriter> Start(const std::string& path, const std::string& body,
                                         const std::string& method = "POST") {
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.request_id = "r1";
    request.body = body;
    auto writer = std::make_shared<RecordingWriter>();
    router.Dispatch(std::move(request), writer);
    return writer;
  }
  HttpResponse Post(const std::string& path, const std::string& body) {
    const auto writer = Start(path, body);
    return writer->WaitDone() ? writer->response : HttpResponse{0, "", {}, "no answer"};
  }
  std::string Stream(const std::string& path, const std::string& body) {
    const auto writer = Start(path, body);
    return writer->WaitDone() ? writer->stream : "no answer";
  }

  TableTokenizer tokenizer;
  PlainChatTemplate chat_template;
  ScriptedEngine engine;
  OutputThread output;
  OpenAiService service;
  Router router;
};

}  // namespace firesteel
