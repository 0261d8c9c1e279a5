// Delivery: who gets which text, who is aborted, and that every stream ends exactly once.
#include "server/stream/output_thread.h"

#include <condition_variable>
#include <mutex>

#include "tests/support/catch.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/table_tokenizer.h"

namespace firesteel {
namespace {

// What a test sees of one stream; outlives it.
struct Record {
  std::mutex mutex;
  std::condition_variable changed;
  std::string text;
  int finishes = 0;
  GenerationResult result;

  bool WaitFinished() {
    std::unique_lock<std::mutex> lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(2), [this] { return finishes > 0; });
  }
};

class RecordingStream : public ResponseStream {
 public:
  RecordingStream(Record* record, bool takes) : record_(record), takes_(takes) {}
  bool OnText(std::string_view text, const GenerationResult&) override {
    const std::lock_guard<std::mutex> lock(record_->mutex);
    record_->text += text;
    return takes_;
  }
  void OnFinish(GenerationResult result) override {
    const std::lock_guard<std::mutex> lock(record_->mutex);
    ++record_->finishes;
    record_->result = std::move(result);
    record_->changed.notify_all();
  }

 private:
  Record* record_;
  bool takes_;
};

std::unique_ptr<ResponseStream> Recorder(Record* record, bool takes = true) {
  return std::make_unique<RecordingStream>(record, takes);
}

GenerationCall Call(std::vector<std::string> stop = {}) {
  GenerationCall call;
  call.prompt_ids = {1, 2};
  call.stop = std::move(stop);
  return call;
}

TokenEvent For(RequestId id, TokenEvent event) {
  event.id = id;
  return event;
}

TableTokenizer Pieces() { return TableTokenizer({"", "a", "b", "EN", "D"}); }

TEST_CASE("a completed stop string aborts the request in the engine and ends its stream once") {
  const TableTokenizer tokenizer = Pieces();
  Record record;
  ScriptedEngine engine(ScriptedModelInfo());
  OutputThread output(&engine, &tokenizer);
  const RequestId id = output.Submit(Call({"END"}), Recorder(&record)).value();
  engine.Emit(For(id, ScriptedEvent({1}, false, 0)));
  engine.Emit(For(id, ScriptedEvent({3, 4, 2}, true, 2)));
  REQUIRE(record.WaitFinished());
  REQUIRE(engine.WaitForAborts(1));
  output.Stop();
  CHECK(engine.aborted() == std::vector<RequestId>{id});
  CHECK(record.finishes == 1);
  CHECK(record.result.finish == FinishReason::kStop);
  CHECK(record.text == "a");
  CHECK(record.result.text == record.text);
}

TEST_CASE("a stop string in the last event needs no abort") {
  const TableTokenizer tokenizer = Pieces();
  Record record;
  ScriptedEngine engine(ScriptedModelInfo());
  OutputThread output(&engine, &tokenizer);
  const RequestId id = output.Submit(Call({"b"}), Recorder(&record)).value();
  engine.Emit(For(id, ScriptedEvent({1, 2}, true, 1, FinishReason::kLength)));
  REQUIRE(record.WaitFinished());
  output.Stop();
  CHECK(engine.aborted().empty());
  CHECK(record.result.finish == FinishReason::kStop);
}

TEST_CASE("a cancelled request ends with kAborted and the tokens it had") {
  const TableTokenizer tokenizer = Pieces();
  Record record;
  ScriptedEngine engine(ScriptedModelInfo());
  OutputThread output(&engine, &tokenizer);
  const RequestId id = output.Submit(Call(), Recorder(&record)).value();
  engine.Emit(For(id, ScriptedEvent({1}, false, 0)));
  output.Cancel(id);
  REQUIRE(record.WaitFinished());
  CHECK(record.result.finish == FinishReason::kAborted);
  CHECK(record.result.output_ids == std::vector<int32_t>{1});
}

TEST_CASE("a stalled consumer is aborted while its neighbour goes on") {
  const TableTokenizer tokenizer = Pieces();
  Record stalled;
  Record healthy;
  ScriptedEngine engine(ScriptedModelInfo());
  OutputThread output(&engine, &tokenizer);
  const RequestId slow = output.Submit(Call(), Recorder(&stalled, false)).value();
  const RequestId fine = output.Submit(Call(), Recorder(&healthy)).value();
  engine.Emit(For(slow, ScriptedEvent({1}, false, 0)));
  engine.Emit(For(fine, ScriptedEvent({1}, false, 0)));
  engine.Emit(For(fine, ScriptedEvent({2, 0}, true, 1, FinishReason::kStop)));
  REQUIRE(stalled.WaitFinished());
  REQUIRE(healthy.WaitFinished());
  CHECK(stalled.result.finish == FinishReason::kAborted);
  CHECK(engine.aborted() == std::vector<RequestId>{slow});
  CHECK(healthy.text == "ab");
  CHECK(healthy.result.finish == FinishReason::kStop);
}

TEST_CASE("a refused call leaves nothing behind and its stream hears nothing") {
  const TableTokenizer tokenizer = Pieces();
  Record record;
  ScriptedEngine engine(ScriptedModelInfo());
  engine.RefuseAfter(0, ResourceExhausted("queue is full"));
  OutputThread output(&engine, &tokenizer);
  const Result<RequestId> id = output.Submit(Call(), Recorder(&record));
  REQUIRE_FALSE(id.ok());
  CHECK(id.status().code() == StatusCode::kResourceExhausted);
  CHECK(output.live() == 0);
  output.Stop();
  CHECK(record.finishes == 0);
}

TEST_CASE("stopping ends what still runs and refuses what comes later") {
  const TableTokenizer tokenizer = Pieces();
  Record record;
  Record late;
  ScriptedEngine engine(ScriptedModelInfo());
  OutputThread output(&engine, &tokenizer);
  const RequestId id = output.Submit(Call(), Recorder(&record)).value();
  output.Stop();
  CHECK(record.finishes == 1);
  CHECK(record.result.finish == FinishReason::kAborted);
  CHECK(engine.aborted() == std::vector<RequestId>{id});
  CHECK(output.Submit(Call(), Recorder(&late)).status().code() == StatusCode::kUnavailable);
  CHECK(late.finishes == 0);
}

TEST_CASE("the model's end tokens travel with every request") {
  const TableTokenizer tokenizer = Pieces();
  Record record;
  ScriptedEngine engine(ScriptedModelInfo());
  OutputThread output(&engine, &tokenizer);
  REQUIRE(output.Submit(Call(), Recorder(&record)).ok());
  CHECK(engine.submitted().at(0).stop_tokens == std::vector<int32_t>{0});
}

// Writes down what it is told. Read after the stream's OnFinish, which comes later.
class RecordingObserver : public GenerationObserver {
 public:
  void OnRefused(StatusCode reason) override { seen.push_back(StatusCodeName(reason)); }
  void OnFirstToken(double) override { seen.push_back("first"); }
  void OnTokens(double, int64_t tokens) override {
    seen.push_back("tokens " + std::to_string(tokens));
  }
  void OnFinish(FinishReason, const GenerationTimes& end) override {
    seen.push_back("finish");
    times = end;
  }

  std::vector<std::string> seen;
  GenerationTimes times;
};

TEST_CASE("the observer is told of the first token, of each later batch and of the end") {
  const TableTokenizer tokenizer = Pieces();
  Record record;
  RecordingObserver observer;
  ScriptedEngine engine(ScriptedModelInfo());
  OutputThread output(&engine, &tokenizer, &observer);
  const RequestId id = output.Submit(Call(), Recorder(&record)).value();
  engine.Emit(For(id, ScriptedEvent({1}, false, 0)));
  engine.Emit(For(id, ScriptedEvent({1, 2, 0}, true, 2, FinishReason::kStop)));
  REQUIRE(record.WaitFinished());
  CHECK(observer.seen == std::vector<std::string>{"first", "tokens 3", "finish"});
  CHECK(observer.times.prompt_tokens == 2);
  CHECK(observer.times.output_tokens == 4);
  CHECK(observer.times.first_token_s <= observer.times.last_token_s);
  CHECK(observer.times.last_token_s <= observer.times.end_s);
}

TEST_CASE("the observer is told why a request was refused") {
  const TableTokenizer tokenizer = Pieces();
  Record record;
  RecordingObserver observer;
  ScriptedEngine engine(ScriptedModelInfo());
  engine.RefuseAfter(0, ResourceExhausted("the queue is full"));
  OutputThread output(&engine, &tokenizer, &observer);
  CHECK_FALSE(output.Submit(Call(), Recorder(&record)).ok());
  CHECK(observer.seen == std::vector<std::string>{StatusCodeName(StatusCode::kResourceExhausted)});
}

}  // namespace
}  // namespace firesteel
