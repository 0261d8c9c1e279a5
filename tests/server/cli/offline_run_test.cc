// The offline commands over a scripted engine: order, errors, in-flight limit and the summary's arithmetic.
#include "server/cli/offline_run.h"

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/table_tokenizer.h"

namespace firesteel {
namespace {

using Json = nlohmann::json;

std::vector<Json> Lines(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  return lines;
}

// Echoes the prompt in the prompt step, then one round that accepts one of five drafts.
std::vector<TokenEvent> Echo(const Request& request) {
  return {ScriptedEvent(request.prompt, false, 0),
          ScriptedEvent({1, 0}, true, 1, FinishReason::kStop)};
}

class TextSource : public LineSource {
 public:
  explicit TextSource(const std::string& text) : stream_(text) {}
  bool Next(std::string* line) override {
    return !stopped && static_cast<bool>(std::getline(stream_, *line));
  }
  void Stop() override { stopped = true; }
  Status status() const override { return result; }

  std::atomic<bool> stopped{false};
  Status result;

 private:
  std::istringstream stream_;
};

struct Fixture {
  explicit Fixture(ScriptedEngine::Script script = Echo, bool compare = false, int32_t batch = 2)
      : tokenizer({"", "a", "b", "c"}),
        engine(Info(), std::move(script)),
        output_thread(&engine, &tokenizer) {
    context.tokenizer = &tokenizer;
    context.vocab_size = 4;
    context.max_model_len = 128;
    options.batch = batch;
    options.compare = compare;
    options.defaults.temperature = 0.0F;
    options.defaults.seed = 7;
    options.defaults.max_tokens = 5;
  }
  static ModelInfo Info() {
    ModelInfo info = ScriptedModelInfo();
    info.vocab_size = 4;
    return info;
  }
  OfflineRunResult Run(const std::string& input) {
    TextSource in(input);
    std::ostringstream out;
    OfflineRun run(&engine, &output_thread, context, options);
    OfflineRunResult result = run.Run(&in, out);
    lines = Lines(out.str());
    summary = Json::parse(result.summary);
    return result;
  }

  TableTokenizer tokenizer;
  ScriptedEngine engine;
  OutputThread output_thread;
  ParseContext context;
  OfflineRunOptions options;
  std::vector<Json> lines;
  Json summary;
};

TEST_CASE("lines are answered in input order, whatever finishes first") {
  Fixture fixture(nullptr, false, 3);
  std::thread finisher([&fixture] {
    while (fixture.engine.submitted().size() < 3) std::this_thread::yield();
    const std::vector<Request> requests = fixture.engine.submitted();
    for (auto it = requests.rbegin(); it != requests.rend(); ++it) {
      TokenEvent event = ScriptedEvent(it->prompt, false, 0, FinishReason::kLength);
      event.id = it->id;
      fixture.engine.Emit(event);
    }
  });
  CHECK(fixture.Run("{\"prompt_ids\":[1]}\n\n{\"prompt\":\"b\"}\n{\"prompt\":\"c\"}\n")
            .all_succeeded);
  finisher.join();
  REQUIRE(fixture.lines.size() == 3);
  for (int i = 0; i < 3; ++i) {
    CHECK(fixture.lines[static_cast<size_t>(i)]["index"] == i);
    CHECK(fixture.lines[static_cast<size_t>(i)]["output_ids"] == Json::array({i + 1}));
  }
  CHECK(fixture.lines[2]["finish_reason"] == "length");
}

TEST_CASE("a bad line gives an error line while the others complete") {
  Fixture fixture;
  const OfflineRunResult result =
      fixture.Run("{\"prompt\":\"a\"}\nnot json\n{\"prompt_ids\":[9]}\n{}\n{\"prompt\":\"b\"}");
  CHECK_FALSE(result.all_succeeded);
  REQUIRE(fixture.lines.size() == 5);
  CHECK(fixture.lines[0]["text"] == "aa");
  for (const size_t bad : {1U, 2U, 3U}) {
    CHECK(fixture.lines[bad]["index"] == bad);
    CHECK(fixture.lines[bad].contains("error"));
    CHECK_FALSE(fixture.lines[bad].contains("output_ids"));
  }
  CHECK(fixture.lines[4]["text"] == "ba");
  CHECK(fixture.summary["failed"] == 3);
  CHECK(fixture.summary["requests"] == 2);
}

TEST_CASE("no more requests than the batch are in flight") {
  size_t most = 0;
  Fixture fixture(nullptr, false, 2);
  std::thread finisher([&] {
    for (size_t finished = 0; finished < 6; ++finished) {
      while (fixture.engine.submitted().size() <= finished) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      most = std::max(most, fixture.engine.submitted().size() - finished);
      TokenEvent event = ScriptedEvent({1}, false, 0, FinishReason::kLength);
      event.id = fixture.engine.submitted()[finished].id;
      fixture.engine.Emit(event);
    }
  });
  std::string input;
  for (int i = 0; i < 6; ++i) input += "{\"prompt\":\"a\"}\n";
  fixture.Run(input);
  finisher.join();
  CHECK(most == 2);
}

TEST_CASE("a line's own sampling wins over the flags") {
  Fixture fixture;
  fixture.Run(
      "{\"prompt\":\"a\",\"max_tokens\":2,\"temperature\":0.5,\"seed\":3,\"top_k\":4}\n{\"prompt\":"
      "\"a\"}\n");
  const std::vector<Request> requests = fixture.engine.submitted();
  CHECK(requests.at(0).sampling.max_tokens == 2);
  CHECK(requests.at(0).sampling.temperature == 0.5F);
  CHECK(requests.at(0).sampling.seed == 3);
  CHECK(requests.at(1).sampling.max_tokens == 5);
  CHECK(requests.at(1).sampling.temperature == 0.0F);
  CHECK(requests.at(1).sampling.seed == 7);
  CHECK(requests.at(0).sampling.top_k == 4);
  CHECK(requests.at(1).sampling.top_k == 0);
}

TEST_CASE("a line's stop string cuts its output") {
  Fixture fixture;
  fixture.Run("{\"prompt\":\"abc\",\"stop\":\"b\"}");
  CHECK(fixture.lines.at(0)["text"] == "a");
  CHECK(fixture.lines.at(0)["output_ids"] == Json::array({1, 2}));
  CHECK(fixture.lines.at(0)["finish_reason"] == "stop");
}

TEST_CASE("the summary counts acceptance as one plus accepted drafts per round") {
  Fixture fixture;
  fixture.Run("{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n");
  CHECK(fixture.lines[0]["accepted_per_step"] == Json::array({1}));
  CHECK(fixture.summary["mean_acceptance_length"] == 2.0);
  CHECK(fixture.summary["acceptance_per_position"] == Json::array({1.0, 0.0, 0.0, 0.0, 0.0}));
  CHECK(fixture.summary["rounds"] == 2);
  CHECK(fixture.summary["prompt_tokens"] == 2);
  CHECK(fixture.summary["tokens"] == 6);
  CHECK(fixture.summary["drafter"] == "dspark");
  CHECK(fixture.summary["batch"] == 2);
  CHECK_FALSE(fixture.summary.contains("matches"));
}

TEST_CASE("an empty input is a run without rounds") {
  Fixture fixture;
  CHECK(fixture.Run("").all_succeeded);
  CHECK(fixture.lines.empty());
  CHECK(fixture.summary["mean_acceptance_length"] == 1.0);
}

TEST_CASE("a line is answered before the next one arrives") {
  // The second line is held back until the first answer is written.
  class AnsweringSource : public LineSource {
   public:
    explicit AnsweringSource(std::atomic<int64_t>* written) : written_(written) {}
    bool Next(std::string* line) override {
      if (lines_ == 2) return false;
      for (int i = 0; i < 500 && *written_ < lines_; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      on_time = on_time && *written_ == lines_;
      ++lines_;
      *line = "{\"prompt\":\"a\"}";
      return true;
    }
    void Stop() override {}
    Status status() const override { return Status::Ok(); }
    bool on_time = true;

   private:
    std::atomic<int64_t>* const written_;
    int64_t lines_ = 0;
  };
  Fixture fixture;
  std::atomic<int64_t> written{0};
  fixture.options.on_progress = [&](int64_t done) { written = done; };
  AnsweringSource source(&written);
  std::ostringstream out;
  OfflineRun run(&fixture.engine, &fixture.output_thread, fixture.context, fixture.options);
  CHECK(run.Run(&source, out).all_succeeded);
  CHECK(source.on_time);
  CHECK(written == 2);
}

TEST_CASE("the first failed write ends the run with an error") {
  Fixture fixture;
  TextSource source("{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n{\"prompt\":\"c\"}\n");
  std::ostream broken(nullptr);
  OfflineRun run(&fixture.engine, &fixture.output_thread, fixture.context, fixture.options);
  const OfflineRunResult result = run.Run(&source, broken);
  CHECK_FALSE(result.all_succeeded);
  CHECK(result.status.message().find("cannot be written") != std::string::npos);
  CHECK(source.stopped);
}

TEST_CASE("a failed read ends the run with its error after the lines before it") {
  Fixture fixture;
  TextSource source("{\"prompt\":\"a\"}\n");
  source.result = Unavailable("the disk is gone");
  std::ostringstream out;
  OfflineRun run(&fixture.engine, &fixture.output_thread, fixture.context, fixture.options);
  const OfflineRunResult result = run.Run(&source, out);
  CHECK_FALSE(result.all_succeeded);
  CHECK(result.status.message() == "the disk is gone");
  CHECK(Lines(out.str()).size() == 1);
}

TEST_CASE("a directory or a missing file is no input") {
  for (const std::string path : {"/tmp", "/nonexistent/lines"}) {
    const auto source = OpenLineSource(path);
    REQUIRE_FALSE(source.ok());
    CHECK(source.status().message().find(path) != std::string::npos);
  }
}

TEST_CASE("eval counts exact matches and names the first mismatch") {
  Fixture fixture(Echo, true);
  fixture.Run(
      "{\"prompt\":\"a\",\"expected_ids\":[1,1,0]}\n{\"prompt\":\"b\"}\n"
      "{\"prompt\":\"b\",\"output_ids\":[1,1,0]}\n{\"prompt\":\"c\",\"output_ids\":[3,1]}\n");
  CHECK(fixture.lines[0]["match"] == true);
  CHECK_FALSE(fixture.lines[1].contains("match"));
  CHECK(fixture.lines[2]["match"] == false);
  CHECK(fixture.summary["matches"] == 1);
  CHECK(fixture.summary["mismatches"] == 2);
  CHECK(fixture.summary["first_mismatch"] == 2);
  CHECK(fixture.summary["without_expectation"] == 1);
}

TEST_CASE("eval succeeds only without mismatches") {
  Fixture fixture(Echo, true);
  CHECK(fixture.Run("{\"prompt\":\"a\",\"expected_ids\":[1,1,0]}").all_succeeded);
  Fixture other(Echo, true);
  CHECK_FALSE(other.Run("{\"prompt\":\"a\",\"expected_ids\":[2]}").all_succeeded);
}

TEST_CASE("an engine failure becomes the line's error") {
  Fixture fixture([](const Request&) {
    TokenEvent event = ScriptedEvent({}, false, 0, FinishReason::kError);
    event.error = Internal("the device failed");
    return std::vector<TokenEvent>{event};
  });
  CHECK_FALSE(fixture.Run("{\"prompt\":\"a\"}").all_succeeded);
  CHECK(fixture.lines.at(0)["error"] == "the device failed");
}

}  // namespace
}  // namespace firesteel
