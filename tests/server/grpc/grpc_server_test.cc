// The gRPC server on a loopback port, over a scripted engine: statuses, cancellation, slow readers and the end.
#include "server/grpc/grpc_server.h"

#include <firesteel/v1/generate.grpc.pb.h>
#include <grpcpp/create_channel.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/table_tokenizer.h"

namespace firesteel {
namespace {

using Ids = std::vector<int32_t>;

struct Fixture {
  explicit Fixture(ScriptedEngine::Script script = nullptr)
      : tokenizer({"", "a", "b", "c"}),
        engine(ScriptedModelInfo(), std::move(script)),
        output(&engine, &tokenizer) {
    GrpcModel model;
    model.name = "toy";
    model.version = "1.2.3";
    model.info = &engine.info();
    model.tokenizer = &tokenizer;
    Result<std::unique_ptr<GrpcServer>> started = GrpcServer::Start({}, model, &output);
    REQUIRE(started.ok());
    server = std::move(started).value();
    channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(server->port()),
                                  grpc::InsecureChannelCredentials());
    stub = v1::Engine::NewStub(channel);
    request.set_text("a");
  }

  RequestId WaitForRequest() const {
    for (int i = 0; i < 500 && engine.submitted().empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    REQUIRE(engine.submitted().size() == 1);
    return engine.submitted()[0].id;
  }
  void Emit(RequestId id, TokenEvent event) {
    event.id = id;
    engine.Emit(std::move(event));
  }
  bool NoCallIsActive() const {
    for (int i = 0; i < 500; ++i) {
      if (server->active_calls() == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  // The status of a whole call; its messages go to `messages`.
  grpc::Status Run(grpc::ClientContext* context, std::vector<v1::GenerateResponse>* messages) {
    const auto reader = stub->Generate(context, request);
    v1::GenerateResponse message;
    while (reader->Read(&message)) messages->push_back(message);
    return reader->Finish();
  }

  TableTokenizer tokenizer;
  ScriptedEngine engine;
  OutputThread output;
  std::unique_ptr<GrpcServer> server;
  std::shared_ptr<grpc::Channel> channel;  // shared with the stub: gRPC's own interface
  std::unique_ptr<v1::Engine::Stub> stub;
  v1::GenerateRequest request;
  grpc::ClientContext context;
  std::vector<v1::GenerateResponse> messages;
};

// The prompt's token, then a round that accepts two of five drafts and ends.
std::vector<TokenEvent> ScriptAbc(const Request&) {
  return {ScriptedEvent({1}, false, 0), ScriptedEvent({2, 3, 0}, true, 2, FinishReason::kStop)};
}

TEST_CASE(
    "the messages of a call join to its text, ids and rounds, and the last one has the usage") {
  Fixture fixture(ScriptAbc);
  REQUIRE(fixture.Run(&fixture.context, &fixture.messages).ok());
  std::string text;
  Ids ids;
  int rounds = 0;
  for (const v1::GenerateResponse& message : fixture.messages) {
    text += message.text();
    ids.insert(ids.end(), message.token_ids().begin(), message.token_ids().end());
    rounds += message.rounds_size();
  }
  CHECK(text == "abc");
  CHECK(ids == Ids{1, 2, 3, 0});
  CHECK(rounds == 1);
  const v1::GenerateResponse& last = fixture.messages.back();
  REQUIRE(last.has_finish());
  CHECK(last.finish().reason() == v1::FINISH_REASON_STOP);
  CHECK(last.finish().usage().prompt_tokens() == 1);
  CHECK(last.finish().usage().completion_tokens() == 4);
  CHECK(last.finish().usage().drafted_tokens() == 5);
  CHECK(last.finish().usage().accepted_tokens() == 2);
  CHECK(fixture.NoCallIsActive());
}

// The messages of one choice, joined.
v1::GenerateResponse Joined(const std::vector<v1::GenerateResponse>& messages, int32_t index) {
  v1::GenerateResponse joined;
  for (const v1::GenerateResponse& message : messages) {
    if (message.index() != index) continue;
    CHECK_FALSE(joined.has_finish());
    const std::string text = joined.text() + message.text();
    joined.MergeFrom(message);
    joined.set_text(text);
  }
  return joined;
}

TEST_CASE("each choice of a call has its own messages and its own last one") {
  Fixture fixture(ScriptAbc);
  fixture.request.mutable_sampling()->set_n(3);
  fixture.request.mutable_sampling()->set_seed(10);
  fixture.request.mutable_sampling()->set_echo(true);
  REQUIRE(fixture.Run(&fixture.context, &fixture.messages).ok());
  for (int32_t index = 0; index < 3; ++index) {
    const v1::GenerateResponse choice = Joined(fixture.messages, index);
    CHECK(choice.text() == "aabc");  // behind the prompt
    CHECK(Ids(choice.token_ids().begin(), choice.token_ids().end()) == Ids{1, 2, 3, 0});
    CHECK(choice.rounds_size() == 1);
    REQUIRE(choice.has_finish());
    CHECK(choice.finish().usage().completion_tokens() == 4);
    CHECK(fixture.engine.submitted().at(static_cast<size_t>(index)).sampling.seed ==
          10U + static_cast<uint64_t>(index));
  }
  CHECK(fixture.NoCallIsActive());
}

TEST_CASE("a queue without room for every choice refuses the call before its first message") {
  Fixture fixture(GENERATE(true, false) ? ScriptedEngine::Script(ScriptAbc) : nullptr);
  fixture.engine.RefuseAfter(2, ResourceExhausted("the queue is full"));
  fixture.request.mutable_sampling()->set_n(3);
  CHECK(fixture.Run(&fixture.context, &fixture.messages).error_code() ==
        grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(fixture.messages.empty());
  CHECK(fixture.context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms") == 1);
  CHECK(fixture.NoCallIsActive());
  for (const Request& admitted : fixture.engine.submitted()) {
    CHECK_FALSE(fixture.engine.running(admitted.id));
  }
}

TEST_CASE("one choice that fails ends the whole call with its status") {
  Fixture fixture([](const Request& request) {
    if (request.sampling.seed != 8) return std::vector<TokenEvent>{ScriptedEvent({1}, false, 0)};
    TokenEvent event = ScriptedEvent({}, false, 0, FinishReason::kError);
    event.error = Internal("the logits are not finite");
    return std::vector<TokenEvent>{event};
  });
  fixture.request.mutable_sampling()->set_n(3);
  fixture.request.mutable_sampling()->set_seed(7);
  const grpc::Status status = fixture.Run(&fixture.context, &fixture.messages);
  CHECK(status.error_code() == grpc::StatusCode::INTERNAL);
  CHECK(status.error_message() == "the logits are not finite");
  CHECK(fixture.NoCallIsActive());
  for (const Request& admitted : fixture.engine.submitted()) {
    CHECK_FALSE(fixture.engine.running(admitted.id));
  }
}

TEST_CASE("log-probabilities come with their tokens, and those of the prompt come first") {
  Fixture fixture([](const Request&) {
    TokenEvent first = ScriptedEvent({1}, false, 0);
    first.prompt_logprobs = {ScriptedLogprobs(2, -INFINITY, 1)};
    first.logprobs = {ScriptedLogprobs(1, -0.5F, 2)};
    TokenEvent last = ScriptedEvent({2, 0}, true, 1, FinishReason::kStop);
    last.logprobs = {ScriptedLogprobs(2, -1.0F, 2), ScriptedLogprobs(0, -2.0F, 2)};
    return std::vector<TokenEvent>{first, last};
  });
  fixture.request.set_text("ab");
  fixture.request.mutable_sampling()->set_logprobs(2);
  fixture.request.mutable_sampling()->set_prompt_logprobs(1);
  REQUIRE(fixture.Run(&fixture.context, &fixture.messages).ok());
  REQUIRE(fixture.messages.front().prompt_logprobs_size() == 1);
  CHECK(fixture.messages.front().prompt_logprobs(0).token_id() == 2);
  CHECK(fixture.messages.front().prompt_logprobs(0).logprob() == -INFINITY);
  for (const v1::GenerateResponse& message : fixture.messages) {
    REQUIRE(message.logprobs_size() == message.token_ids_size());
    for (int i = 0; i < message.logprobs_size(); ++i) {
      CHECK(message.logprobs(i).token_id() == message.token_ids(i));
    }
  }
  const v1::GenerateResponse joined = Joined(fixture.messages, 0);
  REQUIRE(joined.logprobs_size() == 3);
  const TokenLogprobs needed = ScriptedLogprobs(1, -0.5F, 2);
  CHECK(joined.logprobs(0).logprob() == needed.logprob);
  CHECK(joined.logprobs(0).rank() == needed.rank);
  REQUIRE(joined.logprobs(0).top_size() == 2);
  for (int i = 0; i < 2; ++i) {
    CHECK(joined.logprobs(0).top(i).token_id() == needed.top[static_cast<size_t>(i)].token);
    CHECK(joined.logprobs(0).top(i).logprob() == needed.top[static_cast<size_t>(i)].logprob);
  }
}

TEST_CASE("the log-probabilities of a long prompt fit a client's default message limit") {
  constexpr int kPromptTokens = 20'000;
  Fixture fixture([](const Request&) {
    TokenEvent event = ScriptedEvent({1}, false, 0, FinishReason::kLength);
    for (int i = 0; i < kPromptTokens; ++i) {
      event.prompt_logprobs.push_back(ScriptedLogprobs(i, -1.0F, 20));
    }
    return std::vector<TokenEvent>{event};
  });
  fixture.request.mutable_sampling()->set_prompt_logprobs(20);
  REQUIRE(fixture.Run(&fixture.context, &fixture.messages).ok());
  CHECK(fixture.messages.size() > 2);
  const v1::GenerateResponse joined = Joined(fixture.messages, 0);
  REQUIRE(joined.prompt_logprobs_size() == kPromptTokens);
  for (int i = 0; i < kPromptTokens; ++i) REQUIRE(joined.prompt_logprobs(i).token_id() == i);
}

TEST_CASE("a call that only scores its prompt has no output") {
  Fixture fixture([](const Request&) {
    TokenEvent event = ScriptedEvent({1}, false, 0, FinishReason::kLength);
    event.prompt_logprobs = {ScriptedLogprobs(2, -1.0F, 1)};
    return std::vector<TokenEvent>{event};
  });
  fixture.request.mutable_sampling()->set_max_tokens(0);
  fixture.request.mutable_sampling()->set_prompt_logprobs(0);
  REQUIRE(fixture.Run(&fixture.context, &fixture.messages).ok());
  const v1::GenerateResponse joined = Joined(fixture.messages, 0);
  CHECK(fixture.engine.submitted().at(0).sampling.max_tokens == 1);
  CHECK(joined.text().empty());
  CHECK(joined.token_ids().empty());
  CHECK(joined.prompt_logprobs_size() == 1);
  CHECK(joined.finish().reason() == v1::FINISH_REASON_LENGTH);
  CHECK(joined.finish().usage().completion_tokens() == 0);
}

TEST_CASE("refusals of the engine have their gRPC status") {
  Fixture fixture;
  SECTION("a full queue, with a time to come back") {
    fixture.engine.RefuseAfter(0, ResourceExhausted("the queue is full"));
    CHECK(fixture.Run(&fixture.context, &fixture.messages).error_code() ==
          grpc::StatusCode::RESOURCE_EXHAUSTED);
    CHECK(fixture.context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms") == 1);
  }
  SECTION("draining") {
    fixture.engine.BeginDrain();
    CHECK(fixture.Run(&fixture.context, &fixture.messages).error_code() ==
          grpc::StatusCode::UNAVAILABLE);
  }
  SECTION("a bad option") {
    fixture.request.mutable_sampling()->set_temperature(3.0F);
    CHECK(fixture.Run(&fixture.context, &fixture.messages).error_code() ==
          grpc::StatusCode::INVALID_ARGUMENT);
  }
  CHECK(fixture.messages.empty());
  CHECK(fixture.NoCallIsActive());
}

TEST_CASE("an engine failure ends the call as INTERNAL, after the text before it") {
  Fixture fixture([](const Request&) {
    TokenEvent event = ScriptedEvent({}, false, 0, FinishReason::kError);
    event.error = Internal("the device failed");
    return std::vector<TokenEvent>{ScriptedEvent({1}, false, 0), event};
  });
  const grpc::Status status = fixture.Run(&fixture.context, &fixture.messages);
  CHECK(status.error_code() == grpc::StatusCode::INTERNAL);
  CHECK(status.error_message() == "the device failed");
  REQUIRE_FALSE(fixture.messages.empty());
  CHECK(fixture.messages[0].text() == "a");
}

TEST_CASE("a cancelled call and a passed deadline abort the request in the engine") {
  const bool by_deadline = GENERATE(false, true);
  Fixture fixture;
  if (by_deadline) {
    fixture.context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  }
  const auto reader = fixture.stub->Generate(&fixture.context, fixture.request);
  fixture.WaitForRequest();
  if (!by_deadline) fixture.context.TryCancel();
  CHECK(fixture.engine.WaitForAborts(1));
  CHECK(reader->Finish().error_code() ==
        (by_deadline ? grpc::StatusCode::DEADLINE_EXCEEDED : grpc::StatusCode::CANCELLED));
  CHECK(fixture.NoCallIsActive());
}

TEST_CASE("a cancelled call aborts every choice") {
  Fixture fixture;
  fixture.request.mutable_sampling()->set_n(4);
  const auto reader = fixture.stub->Generate(&fixture.context, fixture.request);
  for (int i = 0; i < 500 && fixture.engine.submitted().size() < 4; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  fixture.context.TryCancel();
  CHECK(fixture.engine.WaitForAborts(4));
  CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
  CHECK(fixture.NoCallIsActive());
}

TEST_CASE("a reader that stops is cut at its bound, and another one is not delayed") {
  Fixture fixture;
  const auto slow = fixture.stub->Generate(&fixture.context, fixture.request);
  const RequestId slow_id = fixture.WaitForRequest();
  // 32 KiB of text each, and more for their ids; whatever flow control lets pass is far below the whole.
  const Ids block(32 << 10, 1);
  int blocks = 0;
  for (; blocks < 2048 && fixture.engine.running(slow_id); ++blocks) {
    fixture.Emit(slow_id, ScriptedEvent(block, true, 0));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  CHECK_FALSE(fixture.engine.running(slow_id));
  CHECK(fixture.NoCallIsActive());
  // Tokenize shares the port and the threads.
  grpc::ClientContext context;
  v1::TokenizeRequest text;
  v1::TokenizeResponse ids;
  text.set_text("abc");
  CHECK(fixture.stub->Tokenize(&context, text, &ids).ok());
  CHECK(Ids(ids.ids().begin(), ids.ids().end()) == Ids{1, 2, 3});
}

TEST_CASE("stopping ends running calls and releases the port") {
  Fixture fixture;
  const auto reader = fixture.stub->Generate(&fixture.context, fixture.request);
  fixture.WaitForRequest();
  fixture.server->Stop();
  CHECK_FALSE(reader->Finish().ok());
  CHECK(fixture.server->active_calls() == 0);
  GrpcServerOptions options;
  options.port = fixture.server->port();
  GrpcModel model;
  model.info = &fixture.engine.info();
  model.tokenizer = &fixture.tokenizer;
  CHECK(GrpcServer::Start(options, model, &fixture.output).ok());
}

TEST_CASE("a port in use is an error that names it") {
  Fixture fixture;
  GrpcServerOptions options;
  options.port = fixture.server->port();
  GrpcModel model;
  model.info = &fixture.engine.info();
  model.tokenizer = &fixture.tokenizer;
  const auto second = GrpcServer::Start(options, model, &fixture.output);
  REQUIRE_FALSE(second.ok());
  CHECK(second.status().message().find(std::to_string(options.port)) != std::string::npos);
}

TEST_CASE("a message over the limit is RESOURCE_EXHAUSTED and does not reach the engine") {
  Fixture fixture;
  GrpcServerOptions options;
  options.receive_limit_bytes = 1000;
  GrpcModel model;
  model.info = &fixture.engine.info();
  model.tokenizer = &fixture.tokenizer;
  const auto small = GrpcServer::Start(options, model, &fixture.output).value();
  const auto stub = v1::Engine::NewStub(grpc::CreateChannel(
      "127.0.0.1:" + std::to_string(small->port()), grpc::InsecureChannelCredentials()));
  v1::TokenizeRequest text;
  v1::TokenizeResponse ids;
  text.set_text(std::string(2000, 'a'));
  CHECK(stub->Tokenize(&fixture.context, text, &ids).error_code() ==
        grpc::StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace firesteel
