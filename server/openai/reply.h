// One HTTP answer that one or several generations fill: a JSON body at the end, or server-sent events as text comes.
//
// Threads: Begin and Refuse belong to the handler, the streams run on the output thread; both may run at once.
// Owners: the streams of all choices share the Reply; the last one that is destroyed ends it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/response_writer.h"
#include "server/openai/api_error.h"
#include "server/openai/refused_fields.h"
#include "server/stream/response_stream.h"
#include "server/text/tokenizer.h"

namespace firesteel {

struct ReplyOptions {
  Route route = Route::kCompletions;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  std::string id;
  std::string model;
  int64_t created = 0;        // seconds since the epoch
  int64_t prompt_tokens = 0;  // of all prompts, each counted once
  bool logprobs = false;
  bool prompt_logprobs = false;
  bool drop_output = false;  // answer as if nothing had been generated
  // [choices] with echo, else empty: the prompt goes in front of the choice's text and log-probabilities.
  std::vector<std::vector<int32_t>> echoed_prompts;
};

class Reply : public std::enable_shared_from_this<Reply> {
 public:
  // `tokenizer` outlives the reply. The writer is shared with the connection.
  Reply(ReplyOptions options, const Tokenizer* tokenizer, size_t choices,
        std::shared_ptr<ResponseWriter> writer);

  // The stream that feeds one choice; call once per choice.
  std::unique_ptr<ResponseStream> StreamFor(size_t choice);

  void Begin();  // every generation was admitted: a stream may send its header
  void Refuse(const ApiError& error);  // one was not: the answer is the error

 private:
  class ChoiceStream;

  struct Choice {
    int64_t tokens = 0;
    bool start_sent = false;   // the role of a chat, the echo of a completion
    size_t logprobs_sent = 0;  // output tokens whose log-probabilities are in chunks already
    int64_t text_offset = 0;   // of the next token with log-probabilities
    bool finished = false;
    GenerationResult result;
  };

  bool OnText(size_t choice, std::string_view text, const GenerationResult& so_far);
  void OnFinish(size_t choice, GenerationResult result);

  bool WriteRole(size_t choice);
  bool WriteEcho(size_t choice, const GenerationResult& so_far);
  bool WriteChunk(size_t choice, const std::string& payload, const std::string& logprobs,
                  const char* finish_reason);
  // JSON of the log-probabilities that no chunk had yet, or null.
  std::string NewLogprobs(size_t choice, const GenerationResult& so_far);
  std::string EchoLogprobs(size_t choice, const GenerationResult& so_far);
  std::string BodyLogprobs(size_t choice);
  void FinishStream();
  void SendBody();
  void Fail(const ApiError& error);
  std::string UsageJson() const;

  const ReplyOptions options_;
  const Tokenizer* const tokenizer_;
  const std::shared_ptr<ResponseWriter> writer_;
  std::string chunk_head_;  // the part of every chunk that never changes, formatted once
  std::mutex mutex_;        // guards all below and the order of writes
  std::vector<Choice> choices_;
  size_t finished_ = 0;
  bool closed_ = false;  // answered, refused or failed; nothing more is written
};

}  // namespace firesteel
