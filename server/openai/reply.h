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

namespace firesteel {

struct ReplyOptions {
  Route route = Route::kCompletions;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  std::string id;
  std::string model;
  int64_t created = 0;  // seconds since the epoch
};

class Reply : public std::enable_shared_from_this<Reply> {
 public:
  // `prompt_tokens` has one entry per choice. The writer is shared with the connection.
  Reply(ReplyOptions options, std::vector<int32_t> prompt_tokens,
        std::shared_ptr<ResponseWriter> writer);

  // The stream that feeds one choice; call once per choice.
  std::unique_ptr<ResponseStream> StreamFor(size_t choice);

  void Begin();  // every generation was admitted: a stream may send its header
  void Refuse(const ApiError& error);  // one was not: the answer is the error

 private:
  class ChoiceStream;

  struct Choice {
    int64_t tokens = 0;
    bool role_sent = false;
    bool finished = false;
    GenerationResult result;
  };

  bool OnText(size_t choice, std::string_view text, int64_t tokens_so_far);
  void OnFinish(size_t choice, GenerationResult result);

  bool WriteRole(size_t choice);
  bool WriteChunk(size_t choice, const std::string& payload, const char* finish_reason);
  void FinishStream();
  void SendBody();
  void Fail(const ApiError& error);
  std::string UsageJson() const;

  const ReplyOptions options_;
  const std::vector<int32_t> prompt_tokens_;
  const std::shared_ptr<ResponseWriter> writer_;
  std::string chunk_head_;  // the part of every chunk that never changes, formatted once
  std::mutex mutex_;        // guards all below and the order of writes
  std::vector<Choice> choices_;
  size_t finished_ = 0;
  bool closed_ = false;  // answered, refused or failed; nothing more is written
};

}  // namespace firesteel
