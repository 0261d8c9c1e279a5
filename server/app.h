// What every command shares: the loaded model and the thread that turns its events into text.
//
// Threads: Load and the destructor belong to the main thread; the accessors' objects say for themselves who may call.
#pragma once

#include <memory>
#include <string>

#include "engine/api/engine.h"
#include "kernels/core/status.h"
#include "server/openai/generation_request.h"
#include "server/stream/output_thread.h"
#include "server/text/chat_template.h"
#include "server/text/tokenizer.h"

namespace firesteel {

class App {
 public:
  // Reads the tokenizer and creates the engine. The error is one sentence that names the file or option at fault.
  // `observer` (null: nobody) is told about all generations and outlives the App.
  static Result<std::unique_ptr<App>> Load(const EngineOptions& options,
                                           GenerationObserver* observer = nullptr);

  Engine* engine() { return engine_.get(); }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  const ChatTemplate* chat_template() const {
    return chat_template_.get();
  }  // null: none for this architecture
  OutputThread* output_thread() { return output_thread_.get(); }

  // For parsers of requests and input lines.
  ParseContext MakeParseContext() const;

 private:
  App() = default;

  // Destroyed from the last to the first: the output thread uses the engine and the tokenizer.
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_template_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<OutputThread> output_thread_;
};

}  // namespace firesteel
