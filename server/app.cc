#include "server/app.h"

#include <spdlog/spdlog.h>

#include "server/text/bpe_tokenizer.h"

namespace firesteel {

Result<std::unique_ptr<App>> App::Load(const EngineOptions& options, GenerationObserver* observer) {
  std::unique_ptr<App> app(new App());
  // The engine first: what it says about a missing or damaged checkpoint is more to the point.
  FIRESTEEL_ASSIGN_OR_RETURN(app->engine_, Engine::Create(options));
  FIRESTEEL_ASSIGN_OR_RETURN(app->tokenizer_, LoadBpeTokenizer(options.model_dir));
  const ModelInfo& info = app->engine_->info();
  if (app->tokenizer_->vocab_size() > info.vocab_size) {
    return DataLoss("tokenizer of " + options.model_dir + " has " +
                    std::to_string(app->tokenizer_->vocab_size()) +
                    " tokens, needs at most the model's " + std::to_string(info.vocab_size));
  }
  if (info.eos_tokens.empty()) {
    spdlog::warn("config.json of {} has no eos_token_id: every answer runs to its max_tokens",
                 options.model_dir);
  }
  Result<std::unique_ptr<ChatTemplate>> chat =
      CreateChatTemplate(info.architecture, *app->tokenizer_);
  if (chat.ok()) {
    app->chat_template_ = std::move(chat).value();
  } else {
    spdlog::warn("chat is not available: {}", chat.status().message());
  }
  app->output_thread_ =
      std::make_unique<OutputThread>(app->engine_.get(), app->tokenizer_.get(), observer);
  return app;
}

ParseContext App::MakeParseContext() const {
  ParseContext context;
  context.tokenizer = tokenizer_.get();
  context.chat_template = chat_template_.get();
  context.vocab_size = engine_->info().vocab_size;
  context.max_model_len = engine_->info().max_model_len;
  return context;
}

}  // namespace firesteel
